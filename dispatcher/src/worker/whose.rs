//! Flows whose owner has given them up, and does not know to whom: a daemon has moved them, and the word of that
//! has not come here (docs/protocol/replication.md 4.6f). All other agents are asked. Who has the flow, or has given
//! it up later, is the owner that is asked next; if nobody has, the flow begins anew where the first one gave it up.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use trapeze_core::flow::FlowKey;
use trapeze_core::seq::{ClientSeq, ServerSeq};
use trapeze_core::wire::meta::{Kind, Meta};

use super::State;
use crate::records::Record;

/// Others that are asked.
#[derive(Debug)]
pub(super) struct Others {
    /// Where the owner has given the flow up.
    left_at: ClientSeq,
    /// Those that have not said yet that they have not got it.
    slots: Vec<u32>,
}

impl State {
    /// A backend says where the flow is, as far as it knows.
    pub(super) fn hears_elsewhere(
        &mut self,
        now: Duration,
        key: &FlowKey,
        meta: &Meta,
        from: SocketAddrV4,
        (owner, end): (Ipv4Addr, ServerSeq),
    ) {
        if !owner.is_unspecified() {
            return self.hears_where(now, key, (meta.epoch, meta.start), (owner, end));
        }
        let record = self.shared.records.get(key).ok().flatten();
        let (Some(record), Some(slot)) = (record, self.slot_of(IpAddr::V4(*from.ip()))) else {
            return;
        };
        match meta.epoch.wrapping_sub(record.epoch).cast_signed() {
            // To a question of before.
            ..0 => {}
            0 => {
                let asked = self.unsure.find(key);
                let Some(others) = asked.and_then(|asked| asked.others.as_mut()) else {
                    return;
                };
                others.slots.retain(|&other| other != slot);
                self.ends_if_nobody_has_it(now, key, &record);
            }
            _ if slot == record.slot => self.ask_others(now, key, &record, meta.start),
            // It was the owner until then.
            _ => {
                let place = (meta.epoch.wrapping_sub(1), meta.start);
                self.hears_where(now, key, place, (*from.ip(), end));
            }
        }
    }

    fn ask_others(&mut self, now: Duration, key: &FlowKey, record: &Record, left_at: ClientSeq) {
        let asked = self.unsure.find(key);
        let known = asked.and_then(|asked| asked.others.as_ref());
        let slots = match known {
            Some(others) => others.slots.clone(),
            None => self.agents_but(record.slot),
        };
        let Some(asked) = self.unsure.find(key) else {
            return;
        };
        if asked.others.is_none() {
            let slots = slots.clone();
            asked.others = Some(Others { left_at, slots });
            self.count("asked-others");
        }
        for slot in slots {
            if let Some(backend) = self.backend_address(slot) {
                self.send_question(backend, key, record, Kind::Whose);
            }
        }
        self.ends_if_nobody_has_it(now, key, record);
    }

    /// Those of all other backends, as far as they are there.
    fn agents_but(&self, owner: u32) -> Vec<u32> {
        let cluster = &self.cluster;
        let backends = cluster.slots.iter().zip(&cluster.config.backends);
        backends
            .filter(|(_, backend)| backend.transfer.has_agent())
            .map(|(&slot, _)| slot)
            .filter(|&slot| slot != owner && !self.is_silent(slot))
            .collect()
    }

    /// Then all that was given to its owner is answered, and what begins there is nobody's yet.
    fn ends_if_nobody_has_it(&mut self, now: Duration, key: &FlowKey, record: &Record) {
        let asked = self.unsure.find(key);
        let others = asked.and_then(|asked| asked.others.as_ref());
        let nobody = others.filter(|others| others.slots.is_empty());
        let Some(left_at) = nobody.map(|others| others.left_at) else {
            return;
        };
        self.count("found-with-nobody");
        // How many there were does not matter to one that has given it up.
        let all = (left_at, (record.requests as u16).wrapping_add(1));
        self.on_reckoned(now, key, record.epoch, all);
    }
}
