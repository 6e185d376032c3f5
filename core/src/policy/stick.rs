//! Stickiness, in front of any policy. It keeps no state, so that all dispatchers
//! agree without talking: a cookie names the backend, or a key is hashed by highest
//! random weight.
//!
//! - The backend is gone: the policy chooses for a named one, and the server there
//!   sets its own cookie; of the keys only those of the backend that is gone move,
//!   and they come back with it.
//! - It is draining: it keeps both. A dispatcher cannot tell a new key from an old
//!   one, so new ones come, too; weight 0 sends keys elsewhere.
//! - Its weight is 0: a named one stays, a key moves.

use super::{BackendId, Backends, Bound, Request, hrw};

/// Who has the request already, if anybody alive does.
pub fn bound(request: &Request, backends: &Backends) -> Option<BackendId> {
    match request.bound? {
        Bound::To(id) => backends.get(id).map(|c| c.id),
        Bound::Key(key) => {
            hrw::winner(key, backends.all().iter().filter(|c| c.weight > 0)).map(|c| c.id)
        }
    }
}
