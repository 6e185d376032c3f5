use trapeze_core::membership::Workload;

use super::*;

const INTERVAL: Duration = Duration::from_millis(200);
/// Five in the front end, and as many in sub-cluster 1.
const DISPATCHERS: u8 = 10;

fn config() -> Config {
    let dispatcher = |n: u8| {
        format!(
            "[[dispatcher]]\nname = \"d{n}\"\naddress = \"10.0.0.{n}\"\ninterface = \"eth0\"\n\
             sub_cluster = {}\n",
            u8::from(n > DISPATCHERS / 2)
        )
    };
    let text = format!(
        "[cluster]\nname = \"t\"\nkeys = [{{ id = 1, secret = \"000102030405060708090a0b0c0d0e0f\" }}]\n\
         {}[[backend]]\nname = \"b1\"\naddress = \"10.0.1.1\"\ninterface = \"eth0\"\n\
         [[pool]]\nname = \"web\"\nbackends = [\"b1\"]\n\
         [[service]]\nname = \"site\"\naddress = \"10.0.2.1:80\"\npool = \"web\"\n",
        (1..=DISPATCHERS).map(dispatcher).collect::<String>()
    );
    Config::parse(&text, "test").unwrap()
}

fn peer(n: u8) -> Peer {
    Peer {
        name: format!("d{n}"),
        address: Ipv4Addr::new(10, 0, 0, n),
        slot: n.into(),
    }
}

/// As `d1` of the front end, or another one, knows them.
struct Seen {
    gates: Gates,
    now: Duration,
    own: usize,
}

impl Seen {
    fn by(n: u8) -> Self {
        let own = usize::from(n > DISPATCHERS / 2);
        let others = (1..=DISPATCHERS)
            .map(|n| (usize::from(n > DISPATCHERS / 2), peer(n)))
            .filter(|(cluster, _)| *cluster != own);
        let name = format!("d{n}");
        let elsewhere = Elsewhere::new(&config(), (&name, own), others.collect());
        let now = Duration::from_secs(1);
        Self {
            gates: Gates::new(Arc::new(elsewhere), INTERVAL, now, 0),
            now,
            own,
        }
    }

    /// Beats, which these answer.
    fn rounds(&mut self, rounds: usize, says: impl Fn(u16) -> Option<Presence>) -> &mut Self {
        for _ in 0..rounds {
            self.now += INTERVAL;
            if let Some((number, asked)) = self.gates.beat(self.now) {
                for address in asked {
                    if let Some(said) = says(address.octets()[3].into()) {
                        self.gates.hear(self.now, address, number, said);
                    }
                }
            }
            self.now += INTERVAL / 2;
            self.gates.judge(self.now);
        }
        self
    }

    /// Slots to which the other sub-cluster's lots are dealt, in order.
    fn dealt(&self) -> Vec<u16> {
        let keepers = [Holder::new(SELF, "own", Workload::IDLE)];
        let dealt = self.gates.deal(&keepers);
        assert_eq!(dealt[self.own], keepers);
        let mut slots: Vec<u16> = dealt[1 - self.own].iter().map(|h| h.slot).collect();
        slots.sort_unstable();
        slots
    }
}

const KEEPS: Option<Presence> = Some(Presence::Dispatcher {
    workload: Some(Workload::IDLE),
});
const WITHOUT_DAEMON: Option<Presence> = Some(Presence::Dispatcher { workload: None });

#[test]
fn three_are_watched_and_the_dead_replaced() {
    let mut seen = Seen::by(1);
    let first = seen.rounds(5, |_| KEEPS).dealt();
    assert_eq!(first.len(), 3);
    let dead = first[1];
    let alive = |slot: u16| KEEPS.filter(|_| slot != dead);
    let second = seen.rounds(8, alive).dealt();
    assert_eq!(second.len(), 3);
    assert!(!second.contains(&dead));
    assert!(first.iter().filter(|slot| second.contains(slot)).count() == 2);
    // The dead one is asked on, and taken again.
    assert_eq!(seen.rounds(8, |_| KEEPS).dealt(), first);
}

#[test]
fn lots_are_dealt_to_whoever_can_do_most() {
    let mut seen = Seen::by(1);
    let all = seen.rounds(5, |_| KEEPS).dealt();
    let (one, two) = (all[0], all[1]);
    let dealt = |seen: &mut Seen, others: Option<Presence>| {
        let says = move |slot| if slot == one { KEEPS } else { others };
        seen.rounds(4, says).dealt()
    };
    assert_eq!(dealt(&mut seen, WITHOUT_DAEMON), [one]);
    assert_eq!(dealt(&mut seen, Some(Presence::Joining)), [one]);
    let without = |slot: u16| match slot == two {
        true => Some(Presence::Leaving),
        false => WITHOUT_DAEMON,
    };
    assert_eq!(seen.rounds(4, without).dealt(), [one, all[2]]);
    assert_eq!(seen.rounds(4, |_| Some(Presence::Leaving)).dealt(), all);
}

#[test]
fn a_sub_cluster_of_nobody_falls_to_the_front_end() {
    let mut front = Seen::by(1);
    // Nobody has been asked yet: they may be there.
    assert_eq!(front.dealt().len(), 3);
    assert_eq!(front.rounds(20, |_| None).dealt(), [SELF]);
    assert_eq!(front.gates.status(|_| 0).len(), 5, "all are asked on");
    let back = front.rounds(5, |slot| KEEPS.filter(|_| slot == 8)).dealt();
    assert_eq!(back, [8]);
    // Elsewhere, by way of those of the front end that are watched.
    let mut back = Seen::by(6);
    assert_eq!(back.rounds(5, |_| KEEPS).dealt().len(), 3);
    assert_eq!(back.rounds(20, |_| None).dealt(), [SELF]);
}

#[test]
fn what_servers_send_to_a_splice_address_has_one_of_those_who_are_there() {
    let mut seen = Seen::by(1);
    seen.rounds(5, |_| KEEPS);
    let gates = seen.gates.deal(&[])[1].clone();
    let address = Ipv4Addr::new(10, 0, 0, 9);
    let gate = gate_for(address, &gates).unwrap();
    assert!(gates.iter().any(|holder| holder.slot == gate));
    let rest: Vec<Holder> = gates.into_iter().filter(|h| h.slot != gate).collect();
    assert_ne!(gate_for(address, &rest), Some(gate));
    assert_eq!(gate_for(address, &[]), None);
}
