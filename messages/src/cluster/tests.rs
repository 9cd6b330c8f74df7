use crate::template::Template;

const MINIMAL: &str = "
name: cluster
nodes:
- user: cybozu
  control_plane: true
- user: cybozu
  control_plane: false
service_subnet: 10.68.0.0/16
";

#[test]
fn what_is_written_as_yaml_is_read_again() {
    let template = Template::from_yaml(MINIMAL).unwrap();
    let text = template.cluster().to_yaml().unwrap();
    assert_eq!(&Template::from_yaml(&text).unwrap(), &template, "{text}");
}
