//! BPF objects: loaded, their maps shared with what an earlier daemon left
//! pinned, so that its flows go on.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libbpf_rs::{MapCore, Object, ObjectBuilder};

use crate::map::check;

/// Where state is pinned, below which each cluster and node has its directory.
pub const BPFFS: &str = "/sys/fs/bpf";

/// The directory of a node's pins.
pub fn pin_dir(cluster: &str, node: &str) -> PathBuf {
    Path::new(BPFFS).join("trapeze").join(cluster).join(node)
}

/// A loaded object whose maps are pinned under `dir`.
#[derive(Debug)]
pub struct Loaded {
    object: Object,
    dir: PathBuf,
}

/// Why an object could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The BPF file system is not there and could not be mounted.
    #[error("{BPFFS} is no BPF file system and cannot be mounted ({0}): mount -t bpf bpf {BPFFS}")]
    NoBpffs(io::Error),
    /// The kernel or libbpf refused.
    #[error(
        "cannot load the {program} program: {source}. `trapeze doctor` tells what this host lacks"
    )]
    Refused {
        /// Which object.
        program: &'static str,
        /// What libbpf said.
        source: libbpf_rs::Error,
    },
    /// A pin could not be made.
    #[error("cannot pin {path}: {source}")]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A map whose size is set at load: its name and number of entries.
pub type MapSize = (&'static str, u32);

/// Loads an object; maps that are pinned under `dir` already are taken over,
/// unless their layout has changed: then they start anew.
pub fn load(
    program: &'static str,
    bytes: &[u8],
    dir: &Path,
    sizes: &[MapSize],
) -> Result<Loaded, LoadError> {
    ensure_bpffs().map_err(LoadError::NoBpffs)?;
    std::fs::create_dir_all(dir).map_err(|source| LoadError::Pin {
        path: dir.into(),
        source,
    })?;
    let refused = |source| LoadError::Refused { program, source };
    let mut open = ObjectBuilder::default()
        .open_memory(bytes)
        .map_err(refused)?;
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name.contains('.') {
            continue; // the compiler's own, of constants
        }
        if let Some((_, entries)) = sizes.iter().find(|(sized, _)| *sized == name) {
            map.set_max_entries(*entries).map_err(refused)?;
        }
        let pin = dir.join(&name);
        if pin.exists() && map.reuse_pinned_map(&pin).is_err() {
            std::fs::remove_file(&pin).map_err(|source| LoadError::Pin { path: pin, source })?;
        }
    }
    let mut object = match open.load() {
        Ok(object) => object,
        // A pinned map of another size or layout: start anew, once.
        Err(_) if unpin_maps(dir) > 0 => return load(program, bytes, dir, sizes),
        Err(source) => return Err(refused(source)),
    };
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        let pin = dir.join(&name);
        if !name.contains('.') && !pin.exists() {
            map.pin(&pin).map_err(refused)?;
        }
    }
    Ok(Loaded {
        object,
        dir: dir.into(),
    })
}

impl Loaded {
    /// A program's descriptor.
    ///
    /// # Panics
    /// If the object has no program of that name: names are fixed at build.
    pub fn program(&self, name: &str) -> OwnedFd {
        self.object
            .progs()
            .find(|p| p.name() == name)
            .unwrap_or_else(|| panic!("no program {name}"))
            .as_fd()
            .try_clone_to_owned()
            .expect("descriptors can be duplicated")
    }

    /// Where a map or link of this object is pinned.
    pub fn pin(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Opens what is pinned at a path.
pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    let fd = unsafe { libbpf_sys::bpf_obj_get(path.as_ptr()) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pins a descriptor (link or program) at a path.
pub fn pin(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: a valid C string.
    check(unsafe { libbpf_sys::bpf_obj_pin(fd.as_raw_fd(), path.as_ptr()) })
}

/// Takes all pins of a node away; what no link holds is freed by the kernel.
pub fn unpin_all(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    // The cluster's directory goes with its last node.
    if let Some(cluster) = dir.parent() {
        let _ = std::fs::remove_dir(cluster);
    }
    Ok(())
}

fn unpin_maps(dir: &Path) -> usize {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| !e.file_name().as_bytes().starts_with(b"link_"))
        .filter(|e| std::fs::remove_file(e.path()).is_ok())
        .count()
}

fn ensure_bpffs() -> io::Result<()> {
    let path = c_path(Path::new(BPFFS))?;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a valid C string, and room for the answer.
    if unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) } == 0 {
        // SAFETY: statfs has filled it.
        if unsafe { stat.assume_init() }.f_type as u64 == libc::BPF_FS_MAGIC as u64 {
            return Ok(());
        }
    }
    let done = Command::new("mount")
        .args(["-t", "bpf", "bpf", BPFFS])
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&done.stderr).trim().to_owned(),
        )),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
