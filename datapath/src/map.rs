//! Typed BPF maps: lookups and updates that neither allocate nor copy twice.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use trapeze_core::config::ClusterKey;
use trapeze_core::flow::addr_from_bytes;

use crate::abi::{Pod, Service, ServiceKey, SiphashKey};

/// Whether an update may create or replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Create or replace.
    Any,
    /// Create; `AlreadyExists` if there is one.
    Create,
    /// Replace; `NotFound` if there is none.
    Replace,
}

/// A map of `K` to `V` by its file descriptor.
#[derive(Debug)]
pub struct Map<K, V> {
    fd: OwnedFd,
    types: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> Map<K, V> {
    /// The map behind a descriptor; fails if its key or value is of another size.
    ///
    /// Per-CPU maps have values of another size: see [`PerCpu`].
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let info = info(&fd)?;
        if info.key_size as usize != size_of::<K>() || info.value_size as usize != size_of::<V>() {
            return Err(io::Error::other(format!(
                "map has keys of {} and values of {} bytes, not {} and {}: it is another version's",
                info.key_size,
                info.value_size,
                size_of::<K>(),
                size_of::<V>()
            )));
        }
        Ok(Self {
            fd,
            types: PhantomData,
        })
    }

    /// A map pinned in the BPF file system.
    pub fn from_pin(path: &Path) -> io::Result<Self> {
        Self::from_fd(crate::object::open_pin(path)?)
    }

    /// The value under a key.
    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = MaybeUninit::<V>::uninit();
        // SAFETY: the kernel reads size_of::<K>() bytes and writes size_of::<V>(),
        // which from_fd has checked to be the map's sizes.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_elem(
                self.fd.as_raw_fd(),
                (key as *const K).cast(),
                value.as_mut_ptr().cast(),
            )
        };
        match result {
            // SAFETY: written by the kernel; V is valid for every bit pattern.
            0 => Ok(Some(unsafe { value.assume_init() })),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::NotFound => Ok(None),
                e => Err(e),
            },
        }
    }

    /// Puts a value under a key.
    pub fn put(&self, key: &K, value: &V, update: Update) -> io::Result<()> {
        let flags = match update {
            Update::Any => libbpf_sys::BPF_ANY,
            Update::Create => libbpf_sys::BPF_NOEXIST,
            Update::Replace => libbpf_sys::BPF_EXIST,
        };
        // SAFETY: the kernel reads as many bytes as from_fd has checked.
        check(unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.fd.as_raw_fd(),
                (key as *const K).cast(),
                (value as *const V).cast(),
                flags.into(),
            )
        })
    }

    /// Takes a key out; true if it was there.
    pub fn delete(&self, key: &K) -> io::Result<bool> {
        // SAFETY: the kernel reads size_of::<K>() bytes.
        let result = check(unsafe {
            libbpf_sys::bpf_map_delete_elem(self.fd.as_raw_fd(), (key as *const K).cast())
        });
        match result {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Up to `batch` entries from where `cursor` stands; the cursor ends at the table's end.
    ///
    /// Hash maps only. Entries that change meanwhile may be missed or met twice.
    pub fn walk(&self, cursor: &mut Cursor, batch: usize) -> io::Result<Vec<(K, V)>> {
        let mut keys: Vec<K> = Vec::with_capacity(batch);
        let mut values: Vec<V> = Vec::with_capacity(batch);
        let mut count = batch as u32;
        let mut next = [0u8; 8];
        let from = match cursor.at {
            Some(ref at) => at.as_ptr() as *mut _,
            None => std::ptr::null_mut(),
        };
        let options = libbpf_sys::bpf_map_batch_opts {
            sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
            ..Default::default()
        };
        // SAFETY: keys and values have room for `count` entries; a hash map's
        // batch token is a u32 bucket number, for which `next` has room.
        let result = check(unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.fd.as_raw_fd(),
                from,
                next.as_mut_ptr().cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut count,
                &options,
            )
        });
        match result {
            Ok(()) => cursor.at = Some(next),
            Err(e) if e.kind() == io::ErrorKind::NotFound => cursor.at = None,
            Err(e) => return Err(e),
        }
        let count = (count as usize).min(batch);
        // SAFETY: the kernel has written `count` of each.
        unsafe {
            keys.set_len(count);
            values.set_len(count);
        }
        Ok(keys.into_iter().zip(values).collect())
    }

    /// Every entry, in no order.
    pub fn all(&self) -> io::Result<Vec<(K, V)>> {
        let mut entries = Vec::new();
        self.for_each(|key, value| entries.push((key, value)))?;
        Ok(entries)
    }

    /// Shows every entry, in no order, without holding all of them in memory.
    pub fn for_each(&self, mut see: impl FnMut(K, V)) -> io::Result<()> {
        let mut cursor = Cursor::default();
        let mut batch = 4096;
        loop {
            match self.walk(&mut cursor, batch) {
                Ok(found) => found.into_iter().for_each(|(key, value)| see(key, value)),
                // A bucket had more entries than the batch has room.
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => batch *= 2,
                Err(e) => return Err(e),
            }
            if cursor.at.is_none() {
                return Ok(());
            }
        }
    }

    /// The descriptor, for system calls that need it.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }
}

/// Where a walk over a hash map stands.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    at: Option<[u8; 8]>,
}

impl Cursor {
    /// Whether the walk is at the start (or has come round).
    pub fn at_start(&self) -> bool {
        self.at.is_none()
    }
}

/// A per-CPU array of counters.
#[derive(Debug)]
pub struct PerCpu {
    fd: OwnedFd,
    entries: u32,
}

impl PerCpu {
    /// A pinned per-CPU array of u64.
    pub fn from_pin(path: &Path) -> io::Result<Self> {
        let fd = crate::object::open_pin(path)?;
        let info = info(&fd)?;
        if info.value_size != 8 || info.key_size != 4 {
            return Err(io::Error::other(
                "not an array of counters: it is another version's",
            ));
        }
        Ok(Self {
            fd,
            entries: info.max_entries,
        })
    }

    /// Adds to a counter that no program counts: theirs would lose what they add meanwhile.
    pub fn add(&self, index: u32, more: u64) -> io::Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(io::Error::other)?;
        let mut values = vec![0u64; cpus];
        // SAFETY: the kernel writes and reads 8 bytes for each possible CPU.
        unsafe {
            let (fd, key) = (self.fd.as_raw_fd(), (&raw const index).cast());
            check(libbpf_sys::bpf_map_lookup_elem(
                fd,
                key,
                values.as_mut_ptr().cast(),
            ))?;
            values[0] += more;
            check(libbpf_sys::bpf_map_update_elem(
                fd,
                key,
                values.as_ptr().cast(),
                libbpf_sys::BPF_ANY.into(),
            ))
        }
    }

    /// Each counter, summed over all CPUs.
    pub fn sums(&self) -> io::Result<Vec<u64>> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(io::Error::other)?;
        let mut values = vec![0u64; cpus];
        (0..self.entries)
            .map(|index| {
                // SAFETY: the kernel writes 8 bytes for each possible CPU.
                check(unsafe {
                    libbpf_sys::bpf_map_lookup_elem(
                        self.fd.as_raw_fd(),
                        (&raw const index).cast(),
                        values.as_mut_ptr().cast(),
                    )
                })?;
                Ok(values.iter().sum())
            })
            .collect()
    }
}

/// The values of an array map with BPF_F_MMAPABLE, to be read and written.
pub(crate) fn share<V: Pod>(map: &Map<u32, V>, entries: usize) -> io::Result<*mut libc::c_void> {
    const {
        assert!(
            size_of::<V>().is_multiple_of(8),
            "entries are 8 bytes apart"
        )
    };
    // SAFETY: a new shared mapping.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            entries * size_of::<V>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            map.fd().as_raw_fd(),
            0,
        )
    };
    match memory {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        memory => Ok(memory),
    }
}

/// All of a cluster's keys are accepted, each in the slot of its id; which one
/// signs stands in the node map.
pub fn fill_tag_keys(map: &Map<u32, SiphashKey>, keys: &[ClusterKey]) -> io::Result<()> {
    for id in 0..=255u8 {
        let value = match keys.iter().find(|key| key.id == id) {
            Some(key) => {
                let word = |at: usize| {
                    u64::from_le_bytes(*key.secret[at..].first_chunk().expect("16 bytes"))
                };
                SiphashKey {
                    k0: word(0),
                    k1: word(8),
                    generation: 1,
                }
            }
            None => SiphashKey::zeroed(),
        };
        map.put(&id.into(), &value, Update::Any)?;
    }
    Ok(())
}

/// Each service at its port, and at port 0, which says that the address is a VIP; no others.
///
/// `splice_addresses` stand under port 0, each with its `id`: for dispatchers the slot of whose it is,
/// for sprays when it was last used.
pub fn fill_services<'s>(
    map: &Map<ServiceKey, Service>,
    services: impl Iterator<Item = (&'s SocketAddr, Service)>,
    splice_addresses: impl Iterator<Item = (IpAddr, u32)>,
) -> io::Result<()> {
    let mut wanted = Vec::new();
    for (address, id) in splice_addresses {
        let key = ServiceKey::new(address, 0);
        map.put(&key, &Service::splice_address(id), Update::Any)?;
        wanted.push(key);
    }
    for (address, service) in services {
        for port in [address.port(), 0] {
            let key = ServiceKey::new(address.ip(), port);
            map.put(&key, &service, Update::Any)?;
            wanted.push(key);
        }
    }
    for (key, _) in map.all()? {
        if !wanted.contains(&key) {
            map.delete(&key)?;
        }
    }
    Ok(())
}

/// The splice addresses that are served, each with its `id`.
pub fn splice_addresses(map: &Map<ServiceKey, Service>) -> io::Result<Vec<(IpAddr, u32)>> {
    let all = map.all()?.into_iter();
    let splice_addresses = all.filter(|(key, service)| key.port == [0; 2] && service.mss == 0);
    Ok(splice_addresses
        .map(|(key, service)| (addr_from_bytes(key.addr), service.id))
        .collect())
}

fn info(fd: &OwnedFd) -> io::Result<libbpf_sys::bpf_map_info> {
    let mut info = libbpf_sys::bpf_map_info::default();
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes.
    check(unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &mut length)
    })?;
    Ok(info)
}

/// libbpf's calls answer with -errno, or with -1 and errno.
pub(crate) fn check(result: i32) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        negative => Err(io::Error::from_raw_os_error(-negative)),
    }
}
