use madako_json::go::RawJson;

use super::*;

fn options(text: &str) -> KubernetesOptions {
    KubernetesOptions::read(&RawJson::from_text(text.to_owned()).unwrap()).unwrap()
}

fn wanted(component: Component, text: &str, unknown: Unknown) -> Configuration {
    let node = Node { address: "10.0.0.1".to_owned(), hostname: "n1".to_owned(), ..Node::default() };
    Configuration::build_wanted(component, &options(text), &node, None, unknown).unwrap()
}

const KUBELET: &str = r#""apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration""#;

#[test]
fn a_proxy_has_the_defaults_and_the_forced_values() {
    let text = wanted(Component::Proxy, "{}", Unknown::Drop).to_yaml().unwrap();
    assert_eq!(
        text,
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclientConnection:\n  kubeconfig: \
         /etc/kubernetes/proxy/kubeconfig\nconntrack:\n  tcpCloseWaitTimeout: 1h0m0s\n  tcpEstablishedTimeout: \
         24h0m0s\nhostnameOverride: n1\nkind: KubeProxyConfiguration\nmetricsBindAddress: \"0.0.0.0\"\n"
    );
}

#[test]
fn null_removes_a_default_with_a_pointer_and_no_other_one() {
    let part = r#"{"kube-proxy": {"config": {"conntrack": {"tcpCloseWaitTimeout": null}, "metricsBindAddress": null}}}"#;
    let text = wanted(Component::Proxy, part, Unknown::Drop).to_yaml().unwrap();
    assert!(!text.contains("tcpCloseWaitTimeout") && text.contains("tcpEstablishedTimeout"), "{text}");
    assert!(text.contains("metricsBindAddress"), "{text}");
}

#[test]
fn a_zero_is_kept_where_kubernetes_tells_it_from_an_absent_field() {
    let part = format!(
        r#"{{"kubelet": {{"config": {{{KUBELET}, "failSwapOn": false, "runOnce": false, "healthzPort": 0}}}}}}"#
    );
    let text = wanted(Component::Kubelet, &part, Unknown::Drop).to_yaml().unwrap();
    assert!(text.contains("failSwapOn: false") && text.contains("healthzPort: 0"), "{text}");
    assert!(!text.contains("runOnce"), "{text}");
}

#[test]
fn fields_that_cke_does_not_know_are_kept_on_request() {
    let part = format!(r#"{{"kubelet": {{"config": {{{KUBELET}, "newerField": 1}}}}}}"#);
    let kept = wanted(Component::Kubelet, &part, Unknown::Keep);
    let dropped = wanted(Component::Kubelet, &part, Unknown::Drop);
    assert_eq!(kept.differing_fields(&dropped), ["newerField"]);
    assert!(wanted(Component::Kubelet, "{}", Unknown::Drop).differing_fields(&dropped).is_empty());
}

#[test]
fn a_boot_taint_replaces_the_operators_taint_with_its_key() {
    let part = format!(
        r#"{{"kubelet": {{"config": {{{KUBELET}, "registerWithTaints": [{{"key": "a", "effect": "NoSchedule"}},
            {{"key": "b", "effect": "NoSchedule"}}]}}, "boot_taints": [{{"key": "b", "value": "v", "effect": "NoExecute"}},
            {{"key": "c", "effect": "NoExecute"}}]}}}}"#
    );
    let text = wanted(Component::Kubelet, &part, Unknown::Drop).to_yaml().unwrap();
    let taints = "registerWithTaints:\n- effect: NoSchedule\n  key: a\n- effect: NoExecute\n  key: b\n  value: v\n- effect: \
                  NoExecute\n  key: c\n";
    assert!(text.contains(taints), "{text}");
}

#[test]
fn the_fields_of_a_running_kubelet_that_need_a_reboot_stay() {
    let node = Node { address: "10.0.0.1".to_owned(), ..Node::default() };
    let part =
        format!(r#"{{"kubelet": {{"config": {{{KUBELET}, "cgroupDriver": "systemd", "maxPods": 9}}}}}}"#);
    let file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupRoot: /x\n";
    let running = Configuration::read(Component::Kubelet, file, Unknown::Drop).unwrap();
    let new = Configuration::build_wanted(
        Component::Kubelet,
        &options(&part),
        &node,
        Some(&running),
        Unknown::Drop,
    )
    .unwrap();
    let text = new.to_yaml().unwrap();
    assert!(
        text.contains("cgroupRoot: /x") && text.contains("maxPods: 9") && !text.contains("cgroupDriver"),
        "{text}"
    );
}

#[test]
fn a_difference_names_the_field_and_no_value() {
    let file = "kind: KubeSchedulerConfiguration\napiVersion: kubescheduler.config.k8s.io/v1\nLeaderElection:\n  \
                leaderElect: true\n  leaseDuration: 90s\nclientConnection: {kubeconfig: secret}\n";
    let running = Configuration::read(Component::Scheduler, file, Unknown::Drop).unwrap();
    let part = r#"{"kube-scheduler": {"config": {"leaderElection": {"leaseDuration": "1m30s"}}}}"#;
    let wanted = wanted(Component::Scheduler, part, Unknown::Drop);
    assert_eq!(wanted.differing_fields(&running), ["clientConnection.kubeconfig"]);
}

#[test]
fn a_text_that_is_not_an_object_is_not_a_configuration() {
    for text in ["", "[]", "a: b: c", "a: 1\na: 2"] {
        assert_eq!(Configuration::read(Component::Proxy, text, Unknown::Drop), None, "{text}");
    }
    assert_eq!(Configuration::read(Component::ApiServer, "a: 1", Unknown::Drop), None);
}
