//! Who was used least recently: a list through an array, one link per object.

/// Links lead from the most recent (`next`) to the least; they are by number, and
/// the number after the last object is the list's two ends.
#[derive(Clone, Debug)]
pub(super) struct Lru {
    links: Vec<Link>,
    ends: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

impl Lru {
    pub(super) fn new(objects: usize) -> Self {
        let ends = u32::try_from(objects).expect("objects have numbers of 32 bits");
        let alone = Link {
            previous: ends,
            next: ends,
        };
        Lru {
            links: vec![alone; objects + 1],
            ends,
        }
    }

    /// Moves one of the list to its front.
    pub(super) fn used(&mut self, object: u32) {
        self.unlink(object);
        self.inserted(object);
    }

    /// Adds one that is not in the list, at its front.
    pub(super) fn inserted(&mut self, object: u32) {
        let first = self.links[self.ends as usize].next;
        self.links[object as usize] = Link {
            previous: self.ends,
            next: first,
        };
        self.links[first as usize].previous = object;
        self.links[self.ends as usize].next = object;
    }

    /// Takes the last one out; none if the list is empty.
    pub(super) fn evict(&mut self) -> Option<u32> {
        let last = self.links[self.ends as usize].previous;
        if last == self.ends {
            return None;
        }
        self.unlink(last);
        Some(last)
    }

    fn unlink(&mut self, object: u32) {
        let Link { previous, next } = self.links[object as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
    }
}
