//! Labs whose packets go now to one dispatcher, now to another.

use trapeze_lab::{Options, Process};

use crate::cluster::{Cluster, until};

/// Two sprays that deal packets in turn, one each, to these dispatchers.
pub fn scattered_over(
    dispatchers: &[&str],
    test: &str,
    change: impl FnOnce(&mut Options),
) -> Cluster {
    let cluster = Cluster::with(test, |options| {
        options.sprays = Some(2);
        options.dispatchers = Some(dispatchers.len() as u8);
        options.backends = Some(2);
        change(options);
    });
    let config = cluster.config();
    let mode = "[spraying]\nmode = \"batch\"\nbatch = 1\n";
    let config = match config.contains("[spraying]\n") {
        true => config.replace("[spraying]\n", mode),
        false => format!("{config}\n{mode}"),
    };
    for spray in ["s1", "s2"] {
        cluster.reload(spray, Process::Spray, &config);
    }
    for dispatcher in dispatchers {
        ready(&cluster, dispatchers, dispatcher);
    }
    cluster
}

/// Waits until a dispatcher has all records, and the others of `all` know that.
pub fn ready(cluster: &Cluster, all: &[&str], dispatcher: &str) {
    until("it keeps its share of flows", || {
        let caught_up = cluster.dispatch_status(dispatcher)?.caught_up;
        let others = all.iter().filter(|name| **name != dispatcher);
        let mut views = others.filter_map(|name| cluster.dispatch_status(name));
        let is_known = views.all(|view| {
            let seen = view.peers.iter().find(|peer| peer.name == dispatcher);
            seen.is_some_and(|peer| peer.fit && peer.state == "alive" && peer.lots > 0)
        });
        (caught_up && is_known).then_some(())
    });
}
