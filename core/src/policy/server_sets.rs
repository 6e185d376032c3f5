//! Which backends serve an object, for the policies that let hot objects have
//! several.

use std::time::Duration;

use super::objects::Objects;
use super::{BackendId, Backends, Candidate, Memory};

/// The server sets of up to a configured number of objects, 43 bytes each.
#[derive(Debug)]
pub(super) struct ServerSets {
    objects: Objects<ServerSet>,
}

/// Up to eight backends, or everyone: an object that makes eight backends busy will
/// do so with more, and costs each of them the memory of one object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerSet {
    /// When it last changed; wraps after 49 days.
    last_mod_ms: u32,
    len: u8,
    ids: [u16; WIDTH],
}

const WIDTH: usize = 8;
const EVERYONE: u8 = u8::MAX;

impl ServerSets {
    pub(super) fn new(objects: usize) -> Self {
        ServerSets {
            objects: Objects::new(objects),
        }
    }

    /// The object's set; an empty one if none is known.
    pub(super) fn get(&self, object: u64) -> ServerSet {
        self.objects.get(object).copied().unwrap_or_default()
    }

    pub(super) fn memory(&self) -> Memory {
        Memory {
            objects: self.objects.len(),
            objects_max: self.objects.max(),
            bytes: self.objects.bytes(),
        }
    }

    /// A request for the object went to `chosen`. One that was not in the set joins it;
    /// if the set has not changed for longer than `k`, the member with the most load
    /// leaves. That is the second half of LARD/R's figure and of xLARD/R's.
    pub(super) fn placed(
        &mut self,
        now: Duration,
        object: u64,
        backends: &Backends,
        chosen: BackendId,
        k: Duration,
        load: impl Fn(&Candidate) -> u64,
    ) {
        let now_ms = now.as_millis() as u32;
        let set = self.objects.touch_or_insert(object);
        let joins = !set.contains(chosen);
        if !joins && set.len == 1 {
            return;
        }
        let age_ms = now_ms.wrapping_sub(set.last_mod_ms);
        let leaver = (set.len > 0 && u128::from(age_ms) > k.as_millis())
            .then(|| set.leaver(backends, chosen, load))
            .flatten();
        if joins {
            set.add(chosen, backends);
        }
        if let Some(leaver) = leaver {
            set.remove(leaver, backends);
        }
        if joins || leaver.is_some() {
            set.last_mod_ms = now_ms;
        }
    }
}

impl ServerSet {
    /// Its members that can be chosen.
    pub(super) fn open<'b>(
        &'b self,
        backends: &'b Backends,
    ) -> impl Iterator<Item = &'b Candidate> + Clone {
        let everyone = if self.len == EVERYONE {
            backends.open()
        } else {
            &[]
        };
        (everyone.iter()).chain(
            self.ids()
                .iter()
                .filter_map(|&id| backends.get_open(BackendId(id))),
        )
    }

    pub(super) fn contains(&self, id: BackendId) -> bool {
        self.len == EVERYONE || self.ids().contains(&id.0)
    }

    fn ids(&self) -> &[u16] {
        match self.len {
            EVERYONE => &[],
            len => &self.ids[..len.into()],
        }
    }

    /// Who leaves: one that is gone, else the one with the most load for its weight.
    fn leaver(
        &self,
        backends: &Backends,
        chosen: BackendId,
        load: impl Fn(&Candidate) -> u64,
    ) -> Option<BackendId> {
        let gone = self.ids().iter().map(|&id| BackendId(id));
        let gone = gone
            .filter(|&id| id != chosen)
            .find(|&id| backends.get_open(id).is_none());
        gone.or_else(|| {
            let others = self.open(backends).filter(|c| c.id != chosen);
            super::load::most(others, load).map(|c| c.id)
        })
    }

    fn add(&mut self, id: BackendId, backends: &Backends) {
        let len = usize::from(self.len);
        if len < WIDTH {
            self.ids[len] = id.0;
            self.len += 1;
        } else if let Some(gone) =
            (self.ids.iter_mut()).find(|id| backends.get_open(BackendId(**id)).is_none())
        {
            *gone = id.0;
        } else {
            self.len = EVERYONE;
        }
    }

    fn remove(&mut self, id: BackendId, backends: &Backends) {
        if self.len == EVERYONE {
            // The first eight of the others: any would do, all have the object.
            let others = backends.open().iter().filter(|c| c.id != id).take(WIDTH);
            self.len = 0;
            for c in others {
                self.ids[usize::from(self.len)] = c.id.0;
                self.len += 1;
            }
        } else if let Some(at) = self.ids().iter().position(|&other| other == id.0) {
            let len = usize::from(self.len);
            self.ids.copy_within(at + 1..len, at);
            self.len -= 1;
        }
    }
}
