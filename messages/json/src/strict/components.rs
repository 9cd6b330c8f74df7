//! The schemas of the components' own configurations in Kubernetes 1.30, which CKE 1.30 uses: names and types only.
//! Source: the API packages `k8s.io/kubelet/config/v1beta1`, `k8s.io/kube-proxy/config/v1alpha1` and
//! `k8s.io/kube-scheduler/config/v1`.
//!
//! A name that is missing here is never an error: another version may have it.

use crate::strict::walk::{Kind, Schema};

const TEXTS: Kind = Kind::List(&Kind::Text);
const TEXT_MAP: Kind = Kind::Map(&Kind::Text);
const INT32: Kind = Kind::Whole(i32::MIN as i64, i32::MAX as i64);
const INT64: Kind = Kind::Whole(i64::MIN, i64::MAX);
const UINT32: Kind = Kind::Whole(0, u32::MAX as i64);

/// The kubelet's `KubeletConfiguration` v1beta1.
pub static KUBELET_CONFIGURATION: Schema = Schema {
    fields: &[
        ("kind", Kind::Text),
        ("apiVersion", Kind::Text),
        ("enableServer", Kind::Bool),
        ("staticPodPath", Kind::Text),
        ("podLogsDir", Kind::Text),
        ("syncFrequency", Kind::Duration),
        ("fileCheckFrequency", Kind::Duration),
        ("httpCheckFrequency", Kind::Duration),
        ("staticPodURL", Kind::Text),
        ("staticPodURLHeader", Kind::Map(&TEXTS)),
        ("address", Kind::Text),
        ("port", INT32),
        ("readOnlyPort", INT32),
        ("tlsCertFile", Kind::Text),
        ("tlsPrivateKeyFile", Kind::Text),
        ("tlsCipherSuites", TEXTS),
        ("tlsMinVersion", Kind::Text),
        ("rotateCertificates", Kind::Bool),
        ("serverTLSBootstrap", Kind::Bool),
        ("authentication", Kind::Object(&KUBELET_AUTHENTICATION)),
        ("authorization", Kind::Object(&KUBELET_AUTHORIZATION)),
        ("registryPullQPS", INT32),
        ("registryBurst", INT32),
        ("eventRecordQPS", INT32),
        ("eventBurst", INT32),
        ("enableDebuggingHandlers", Kind::Bool),
        ("enableContentionProfiling", Kind::Bool),
        ("healthzPort", INT32),
        ("healthzBindAddress", Kind::Text),
        ("oomScoreAdj", INT32),
        ("clusterDomain", Kind::Text),
        ("clusterDNS", TEXTS),
        ("streamingConnectionIdleTimeout", Kind::Duration),
        ("nodeStatusUpdateFrequency", Kind::Duration),
        ("nodeStatusReportFrequency", Kind::Duration),
        ("nodeLeaseDurationSeconds", INT32),
        ("imageMinimumGCAge", Kind::Duration),
        ("imageMaximumGCAge", Kind::Duration),
        ("imageGCHighThresholdPercent", INT32),
        ("imageGCLowThresholdPercent", INT32),
        ("volumeStatsAggPeriod", Kind::Duration),
        ("kubeletCgroups", Kind::Text),
        ("systemCgroups", Kind::Text),
        ("cgroupRoot", Kind::Text),
        ("cgroupsPerQOS", Kind::Bool),
        ("cgroupDriver", Kind::Text),
        ("cpuManagerPolicy", Kind::Text),
        ("cpuManagerPolicyOptions", TEXT_MAP),
        ("cpuManagerReconcilePeriod", Kind::Duration),
        ("memoryManagerPolicy", Kind::Text),
        ("topologyManagerPolicy", Kind::Text),
        ("topologyManagerScope", Kind::Text),
        ("topologyManagerPolicyOptions", TEXT_MAP),
        ("qosReserved", TEXT_MAP),
        ("runtimeRequestTimeout", Kind::Duration),
        ("hairpinMode", Kind::Text),
        ("maxPods", INT32),
        ("podCIDR", Kind::Text),
        ("podPidsLimit", INT64),
        ("resolvConf", Kind::Text),
        ("runOnce", Kind::Bool),
        ("cpuCFSQuota", Kind::Bool),
        ("cpuCFSQuotaPeriod", Kind::OptionalDuration),
        ("nodeStatusMaxImages", INT32),
        ("maxOpenFiles", INT64),
        ("contentType", Kind::Text),
        ("kubeAPIQPS", INT32),
        ("kubeAPIBurst", INT32),
        ("serializeImagePulls", Kind::Bool),
        ("maxParallelImagePulls", INT32),
        ("evictionHard", TEXT_MAP),
        ("evictionSoft", TEXT_MAP),
        ("evictionSoftGracePeriod", TEXT_MAP),
        ("evictionPressureTransitionPeriod", Kind::Duration),
        ("evictionMaxPodGracePeriod", INT32),
        ("evictionMinimumReclaim", TEXT_MAP),
        ("podsPerCore", INT32),
        ("enableControllerAttachDetach", Kind::Bool),
        ("protectKernelDefaults", Kind::Bool),
        ("makeIPTablesUtilChains", Kind::Bool),
        ("iptablesMasqueradeBit", INT32),
        ("iptablesDropBit", INT32),
        ("featureGates", Kind::Map(&Kind::Bool)),
        ("failSwapOn", Kind::Bool),
        ("memorySwap", Kind::Object(&MEMORY_SWAP_CONFIGURATION)),
        ("containerLogMaxSize", Kind::Text),
        ("containerLogMaxFiles", INT32),
        ("containerLogMaxWorkers", INT32),
        ("containerLogMonitorInterval", Kind::OptionalDuration),
        ("configMapAndSecretChangeDetectionStrategy", Kind::Text),
        ("systemReserved", TEXT_MAP),
        ("kubeReserved", TEXT_MAP),
        ("reservedSystemCPUs", Kind::Text),
        ("showHiddenMetricsForVersion", Kind::Text),
        ("systemReservedCgroup", Kind::Text),
        ("kubeReservedCgroup", Kind::Text),
        ("enforceNodeAllocatable", TEXTS),
        ("allowedUnsafeSysctls", TEXTS),
        ("volumePluginDir", Kind::Text),
        ("providerID", Kind::Text),
        ("kernelMemcgNotification", Kind::Bool),
        ("logging", Kind::Object(&LOGGING_CONFIGURATION)),
        ("enableSystemLogHandler", Kind::Bool),
        ("enableSystemLogQuery", Kind::Bool),
        ("shutdownGracePeriod", Kind::Duration),
        ("shutdownGracePeriodCriticalPods", Kind::Duration),
        (
            "shutdownGracePeriodByPodPriority",
            Kind::List(&Kind::Object(&SHUTDOWN_GRACE_PERIOD_BY_POD_PRIORITY)),
        ),
        ("reservedMemory", Kind::List(&Kind::Object(&MEMORY_RESERVATION))),
        ("enableProfilingHandler", Kind::Bool),
        ("enableDebugFlagsHandler", Kind::Bool),
        ("seccompDefault", Kind::Bool),
        ("memoryThrottlingFactor", Kind::Number),
        ("registerWithTaints", Kind::List(&Kind::Object(&TAINT))),
        ("registerNode", Kind::Bool),
        ("tracing", Kind::Object(&TRACING_CONFIGURATION)),
        ("localStorageCapacityIsolation", Kind::Bool),
        ("containerRuntimeEndpoint", Kind::Text),
        ("imageServiceEndpoint", Kind::Text),
    ],
};

static KUBELET_AUTHENTICATION: Schema = Schema {
    fields: &[
        ("x509", Kind::Object(&KUBELET_X509_AUTHENTICATION)),
        ("webhook", Kind::Object(&KUBELET_WEBHOOK_AUTHENTICATION)),
        ("anonymous", Kind::Object(&KUBELET_ANONYMOUS_AUTHENTICATION)),
    ],
};

static KUBELET_AUTHORIZATION: Schema =
    Schema { fields: &[("mode", Kind::Text), ("webhook", Kind::Object(&KUBELET_WEBHOOK_AUTHORIZATION))] };

static MEMORY_SWAP_CONFIGURATION: Schema = Schema { fields: &[("swapBehavior", Kind::Text)] };

static LOGGING_CONFIGURATION: Schema = Schema {
    fields: &[
        ("format", Kind::Text),
        ("flushFrequency", Kind::LogDuration),
        ("verbosity", UINT32),
        ("vmodule", Kind::List(&Kind::Object(&VMODULE_ITEM))),
        ("options", Kind::Object(&FORMAT_OPTIONS)),
    ],
};

static SHUTDOWN_GRACE_PERIOD_BY_POD_PRIORITY: Schema =
    Schema { fields: &[("priority", INT32), ("shutdownGracePeriodSeconds", INT64)] };

static MEMORY_RESERVATION: Schema =
    Schema { fields: &[("numaNode", INT32), ("limits", Kind::Map(&Kind::Quantity))] };

static TAINT: Schema = Schema {
    fields: &[("key", Kind::Text), ("value", Kind::Text), ("effect", Kind::Text), ("timeAdded", Kind::Text)],
};

static TRACING_CONFIGURATION: Schema =
    Schema { fields: &[("endpoint", Kind::Text), ("samplingRatePerMillion", INT32)] };

static KUBELET_X509_AUTHENTICATION: Schema = Schema { fields: &[("clientCAFile", Kind::Text)] };

static KUBELET_WEBHOOK_AUTHENTICATION: Schema =
    Schema { fields: &[("enabled", Kind::Bool), ("cacheTTL", Kind::Duration)] };

static KUBELET_ANONYMOUS_AUTHENTICATION: Schema = Schema { fields: &[("enabled", Kind::Bool)] };

static KUBELET_WEBHOOK_AUTHORIZATION: Schema =
    Schema { fields: &[("cacheAuthorizedTTL", Kind::Duration), ("cacheUnauthorizedTTL", Kind::Duration)] };

static VMODULE_ITEM: Schema = Schema { fields: &[("filePattern", Kind::Text), ("verbosity", UINT32)] };

static FORMAT_OPTIONS: Schema =
    Schema { fields: &[("text", Kind::Object(&TEXT_OPTIONS)), ("json", Kind::Object(&JSONOPTIONS))] };

static TEXT_OPTIONS: Schema =
    Schema { fields: &[("splitStream", Kind::Bool), ("infoBufferSize", Kind::Quantity)] };

static JSONOPTIONS: Schema =
    Schema { fields: &[("splitStream", Kind::Bool), ("infoBufferSize", Kind::Quantity)] };

/// kube-proxy's `KubeProxyConfiguration` v1alpha1.
pub static KUBE_PROXY_CONFIGURATION: Schema = Schema {
    fields: &[
        ("kind", Kind::Text),
        ("apiVersion", Kind::Text),
        ("featureGates", Kind::Map(&Kind::Bool)),
        ("clientConnection", Kind::Object(&CLIENT_CONNECTION_CONFIGURATION)),
        ("logging", Kind::Object(&LOGGING_CONFIGURATION)),
        ("hostnameOverride", Kind::Text),
        ("bindAddress", Kind::Text),
        ("healthzBindAddress", Kind::Text),
        ("metricsBindAddress", Kind::Text),
        ("bindAddressHardFail", Kind::Bool),
        ("enableProfiling", Kind::Bool),
        ("showHiddenMetricsForVersion", Kind::Text),
        ("mode", Kind::Text),
        ("iptables", Kind::Object(&KUBE_PROXY_IPTABLES_CONFIGURATION)),
        ("ipvs", Kind::Object(&KUBE_PROXY_IPVSCONFIGURATION)),
        ("nftables", Kind::Object(&KUBE_PROXY_NFTABLES_CONFIGURATION)),
        ("winkernel", Kind::Object(&KUBE_PROXY_WINKERNEL_CONFIGURATION)),
        ("detectLocalMode", Kind::Text),
        ("detectLocal", Kind::Object(&DETECT_LOCAL_CONFIGURATION)),
        ("clusterCIDR", Kind::Text),
        ("nodePortAddresses", TEXTS),
        ("oomScoreAdj", INT32),
        ("conntrack", Kind::Object(&KUBE_PROXY_CONNTRACK_CONFIGURATION)),
        ("configSyncPeriod", Kind::Duration),
        ("portRange", Kind::Text),
    ],
};

static CLIENT_CONNECTION_CONFIGURATION: Schema = Schema {
    fields: &[
        ("kubeconfig", Kind::Text),
        ("acceptContentTypes", Kind::Text),
        ("contentType", Kind::Text),
        ("qps", Kind::Number),
        ("burst", INT32),
    ],
};

static KUBE_PROXY_IPTABLES_CONFIGURATION: Schema = Schema {
    fields: &[
        ("masqueradeBit", INT32),
        ("masqueradeAll", Kind::Bool),
        ("localhostNodePorts", Kind::Bool),
        ("syncPeriod", Kind::Duration),
        ("minSyncPeriod", Kind::Duration),
    ],
};

static KUBE_PROXY_IPVSCONFIGURATION: Schema = Schema {
    fields: &[
        ("syncPeriod", Kind::Duration),
        ("minSyncPeriod", Kind::Duration),
        ("scheduler", Kind::Text),
        ("excludeCIDRs", TEXTS),
        ("strictARP", Kind::Bool),
        ("tcpTimeout", Kind::Duration),
        ("tcpFinTimeout", Kind::Duration),
        ("udpTimeout", Kind::Duration),
    ],
};

static KUBE_PROXY_NFTABLES_CONFIGURATION: Schema = Schema {
    fields: &[
        ("masqueradeBit", INT32),
        ("masqueradeAll", Kind::Bool),
        ("syncPeriod", Kind::Duration),
        ("minSyncPeriod", Kind::Duration),
    ],
};

static KUBE_PROXY_WINKERNEL_CONFIGURATION: Schema = Schema {
    fields: &[
        ("networkName", Kind::Text),
        ("sourceVip", Kind::Text),
        ("enableDSR", Kind::Bool),
        ("rootHnsEndpointName", Kind::Text),
        ("forwardHealthCheckVip", Kind::Bool),
    ],
};

static DETECT_LOCAL_CONFIGURATION: Schema =
    Schema { fields: &[("bridgeInterface", Kind::Text), ("interfaceNamePrefix", Kind::Text)] };

static KUBE_PROXY_CONNTRACK_CONFIGURATION: Schema = Schema {
    fields: &[
        ("maxPerCore", INT32),
        ("min", INT32),
        ("tcpEstablishedTimeout", Kind::OptionalDuration),
        ("tcpCloseWaitTimeout", Kind::OptionalDuration),
        ("tcpBeLiberal", Kind::Bool),
        ("udpTimeout", Kind::Duration),
        ("udpStreamTimeout", Kind::Duration),
    ],
};

/// kube-scheduler's `KubeSchedulerConfiguration` v1.
pub static KUBE_SCHEDULER_CONFIGURATION: Schema = Schema {
    fields: &[
        ("kind", Kind::Text),
        ("apiVersion", Kind::Text),
        ("parallelism", INT32),
        ("leaderElection", Kind::Object(&LEADER_ELECTION_CONFIGURATION)),
        ("clientConnection", Kind::Object(&CLIENT_CONNECTION_CONFIGURATION)),
        ("enableProfiling", Kind::Bool),
        ("enableContentionProfiling", Kind::Bool),
        ("percentageOfNodesToScore", INT32),
        ("podInitialBackoffSeconds", INT64),
        ("podMaxBackoffSeconds", INT64),
        ("profiles", Kind::List(&Kind::Object(&KUBE_SCHEDULER_PROFILE))),
        ("extenders", Kind::List(&Kind::Object(&EXTENDER))),
        ("delayCacheUntilActive", Kind::Bool),
    ],
};

static LEADER_ELECTION_CONFIGURATION: Schema = Schema {
    fields: &[
        ("leaderElect", Kind::Bool),
        ("leaseDuration", Kind::Duration),
        ("renewDeadline", Kind::Duration),
        ("retryPeriod", Kind::Duration),
        ("resourceLock", Kind::Text),
        ("resourceName", Kind::Text),
        ("resourceNamespace", Kind::Text),
    ],
};

static KUBE_SCHEDULER_PROFILE: Schema = Schema {
    fields: &[
        ("schedulerName", Kind::Text),
        ("percentageOfNodesToScore", INT32),
        ("plugins", Kind::Object(&PLUGINS)),
        ("pluginConfig", Kind::List(&Kind::Object(&PLUGIN_CONFIG))),
    ],
};

static EXTENDER: Schema = Schema {
    fields: &[
        ("urlPrefix", Kind::Text),
        ("filterVerb", Kind::Text),
        ("preemptVerb", Kind::Text),
        ("prioritizeVerb", Kind::Text),
        ("weight", INT64),
        ("bindVerb", Kind::Text),
        ("enableHTTPS", Kind::Bool),
        ("tlsConfig", Kind::Object(&EXTENDER_TLSCONFIG)),
        ("httpTimeout", Kind::Duration),
        ("nodeCacheCapable", Kind::Bool),
        ("managedResources", Kind::List(&Kind::Object(&EXTENDER_MANAGED_RESOURCE))),
        ("ignorable", Kind::Bool),
    ],
};

static PLUGINS: Schema = Schema {
    fields: &[
        ("preEnqueue", Kind::Object(&PLUGIN_SET)),
        ("queueSort", Kind::Object(&PLUGIN_SET)),
        ("preFilter", Kind::Object(&PLUGIN_SET)),
        ("filter", Kind::Object(&PLUGIN_SET)),
        ("postFilter", Kind::Object(&PLUGIN_SET)),
        ("preScore", Kind::Object(&PLUGIN_SET)),
        ("score", Kind::Object(&PLUGIN_SET)),
        ("reserve", Kind::Object(&PLUGIN_SET)),
        ("permit", Kind::Object(&PLUGIN_SET)),
        ("preBind", Kind::Object(&PLUGIN_SET)),
        ("bind", Kind::Object(&PLUGIN_SET)),
        ("postBind", Kind::Object(&PLUGIN_SET)),
        ("multiPoint", Kind::Object(&PLUGIN_SET)),
    ],
};

static PLUGIN_CONFIG: Schema = Schema { fields: &[("name", Kind::Text), ("args", Kind::Any)] };

static EXTENDER_TLSCONFIG: Schema = Schema {
    fields: &[
        ("insecure", Kind::Bool),
        ("serverName", Kind::Text),
        ("certFile", Kind::Text),
        ("keyFile", Kind::Text),
        ("caFile", Kind::Text),
        ("certData", Kind::Text),
        ("keyData", Kind::Text),
        ("caData", Kind::Text),
    ],
};

static EXTENDER_MANAGED_RESOURCE: Schema =
    Schema { fields: &[("name", Kind::Text), ("ignoredByScheduler", Kind::Bool)] };

static PLUGIN_SET: Schema = Schema {
    fields: &[
        ("enabled", Kind::List(&Kind::Object(&PLUGIN))),
        ("disabled", Kind::List(&Kind::Object(&PLUGIN))),
    ],
};

static PLUGIN: Schema = Schema { fields: &[("name", Kind::Text), ("weight", INT32)] };
