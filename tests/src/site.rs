//! The parts of configurations that tests share; nodes are
//! [`Cluster::nodes`](crate::Cluster::nodes).

use std::fmt::Write;

/// All to b1.
pub const ONE_BACKEND: &str = "[[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
     [[service]]\nname = \"site\"\naddress = \"10.77.0.100:80\"\npool = \"web\"\n";

/// Pools of one backend each, by their names, so that the backend tells the pool.
pub fn pools(pools: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, backend) in pools {
        let _ = writeln!(
            text,
            "[[pool]]\nname = \"{name}\"\nbackends = [\"{backend}\"]"
        );
    }
    text
}

/// The service `site` at a port, whose own pool is `web`. Rules may follow.
pub fn service(port: u16) -> String {
    format!("[[service]]\nname = \"site\"\naddress = \"10.77.0.100:{port}\"\npool = \"web\"\n")
}

/// Its next rule.
pub fn rule(condition: &str, pool: &str) -> String {
    format!("[[service.rule]]\n{condition}\npool = \"{pool}\"\n")
}
