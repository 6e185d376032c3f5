//! Which configuration files fit a lab, and what the misfits are told.

use super::*;

const EXAMPLE: &str = include_str!("../../examples/trapeze.toml");

fn refusal(text: &str) -> String {
    format!("{:#}", read(text, "own.toml", "x").unwrap_err())
}

#[test]
fn the_generated_file_fits() {
    let options = Options {
        backends: Some(2),
        tls: true,
        ..Options::named("x")
    };
    let cluster = configure(&options).unwrap();
    assert_eq!((cluster.dispatchers, cluster.backends), (1, 2));
    assert_eq!(cluster.service.to_string(), "10.77.0.100:80");
    assert_eq!(cluster.ports.plain, [80]);
    assert_eq!(cluster.ports.tls, [443]);
    assert!(cluster.text.contains("name = \"lab-x\""));
    assert!(cluster.text.contains("policy = \"round-robin\""));
}

#[test]
fn with_etcd_sprays_and_dispatchers_are_in_files_of_their_own() {
    let mut options = Options {
        etcd: true,
        dispatchers: Some(2),
        transfer: Some("splice".into()),
        ..Options::named("x")
    };
    let error = configure(&options).unwrap_err().to_string();
    assert!(error.contains("--spray 1"), "{error}");
    options.sprays = Some(1);
    let cluster = configure(&options).unwrap();
    assert_eq!((cluster.sprays, cluster.dispatchers), (1, 2));
    let named = |text: &str| {
        let config = Config::parse(text, "own.toml").unwrap();
        (config.sprays.len(), config.dispatchers.len())
    };
    assert_eq!(named(&cluster.text), (0, 0));
    for (role, host, wanted) in [
        (Role::Spray, "s1", (1, 0)),
        (Role::Dispatcher, "d2", (0, 1)),
    ] {
        let own = own_section(role, host, &cluster.text).unwrap();
        assert_eq!(named(&(cluster.text.clone() + &own)), wanted, "{own}");
    }
}

#[test]
fn the_policy_of_the_only_pool_can_be_changed() {
    let text = configure(&Options::named("x")).unwrap().text;
    let changed = with_policy(&text, PolicyKind::Hrw).unwrap();
    assert_eq!(changed, text.replace("\"round-robin\"", "\"hrw\""));
    let table = text.replace("\"round-robin\"", "{ name = \"lard\", t_low = 9 }");
    assert_eq!(with_policy(&table, PolicyKind::Hrw).unwrap(), changed);
    assert!(with_policy(EXAMPLE, PolicyKind::Hrw).is_err());
}

#[test]
fn every_lab_has_its_own_key() {
    let options = Options::named("x");
    assert_ne!(
        configure(&options).unwrap().text,
        configure(&options).unwrap().text
    );
}

#[test]
fn the_example_fits_and_gets_the_labs_name() {
    let cluster = read(EXAMPLE, "own.toml", "x").unwrap();
    assert_eq!((cluster.dispatchers, cluster.backends), (1, 3));
    assert_eq!(cluster.ports.plain, [80, 8080, 8081]);
    assert_eq!(cluster.ports.tls, [443, 8443]);
    let expected = EXAMPLE.replace("name = \"example\"", "name = \"lab-x\"");
    assert_eq!(cluster.text, expected);
}

#[test]
fn misfits_are_told_what_a_lab_has() {
    for (from, to, says) in [
        (
            "10.77.0.21",
            "10.77.0.31",
            "in a lab it has the address 10.77.0.21",
        ),
        (
            "10.77.0.100:80",
            "10.0.0.1:80",
            "a lab's service address is 10.77.0.100",
        ),
        ("name = \"d1\"", "name = \"front\"", "are called d1 to d1"),
        (
            "interface = \"eth0\"",
            "interface = \"ens1\"",
            "in a lab it is \"eth0\"",
        ),
        ("[[service", "[[other", "there is no [[service]]"),
        ("[cluster]", "[cluster", "own.toml:2:"),
    ] {
        let refusal = refusal(&EXAMPLE.replace(from, to));
        assert!(refusal.contains(says), "{refusal}");
    }
}

#[test]
fn numbers_that_contradict_the_file_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), EXAMPLE).unwrap();
    let options = Options {
        backends: Some(2),
        config: Some(file.path().to_owned()),
        ..Options::named("x")
    };
    let refusal = configure(&options).unwrap_err().to_string();
    assert!(refusal.contains("--backends is 2"), "{refusal}");
}

#[test]
fn a_backend_without_an_agent_needs_no_interface() {
    let [with, without] = ["interface = \"eth0\"", "transfer = \"splice\""]
        .map(|line| format!("address = \"10.77.0.23\"\n{line}\n"));
    let d1 = "address = \"10.77.0.11\"\n";
    let from = format!("{d1}splice_address = \"10.77.0.111\"\n");
    let own = EXAMPLE.replace(&with, &without).replace(d1, &from);
    let cluster = read(&own, "own.toml", "x").unwrap();
    assert!(cluster.agentless.contains("b3"));
}

#[test]
fn dispatchers_are_divided_into_sub_clusters_in_order() {
    let divided = |dispatchers, sub_clusters| {
        let options = Options {
            sprays: Some(1),
            dispatchers: Some(dispatchers),
            sub_clusters: Some(sub_clusters),
            ..Options::named("x")
        };
        let text = configure(&options)?.text;
        let config = Config::parse(&text, "t.toml")?;
        let all = config.dispatchers.iter().map(|d| d.sub_cluster);
        Ok::<_, anyhow::Error>(all.collect::<Vec<_>>())
    };
    assert_eq!(divided(4, 2).unwrap(), [0, 0, 1, 1]);
    assert_eq!(divided(5, 3).unwrap(), [0, 0, 1, 1, 2]);
    assert_eq!(divided(3, 1).unwrap(), [0, 0, 0]);
    let error = divided(2, 3).unwrap_err().to_string();
    assert!(error.contains("--dispatchers 3"), "{error}");
}
