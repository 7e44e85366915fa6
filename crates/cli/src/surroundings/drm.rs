//! Which nodes below `/dev/dri` the software GPUs get, beside those that the machine has.
//!
//! The machine is asked by system calls of this program's own: in a shell of `peerdma env` libc's
//! functions show the software GPUs of that shell, which are no nodes of the machine's.

use rustix::fs::{Access, Dir, Mode, OFlags};
use std::path::Path;
use sysfs::{DRM_RENDER_BASE_MINOR, DrmNodes, Entry, Node, drm_node};

/// Nodes that the machine does not have, lowest numbers first; as many as a kernel before 6.14
/// knows.
pub fn free_nodes() -> impl Iterator<Item = DrmNodes> {
    free_nodes_beside(|path| rustix::fs::access(path, Access::EXISTS).is_ok())
}

fn free_nodes_beside(exists: impl Fn(&Path) -> bool) -> impl Iterator<Item = DrmNodes> {
    let nodes = |card| DrmNodes { card, render: DRM_RENDER_BASE_MINOR + card };
    let is_free = move |nodes: &DrmNodes| {
        [nodes.card, nodes.render].iter().all(|minor| !exists(Path::new(&drm_node(*minor))))
    };
    (0..64).map(nodes).filter(is_free)
}

/// Links to the machine's own, so that a program that lists the nodes sees them too.
pub fn machines_own() -> Vec<Entry> {
    let listed = |folder: &'static str| {
        let opened = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let entries = opened.and_then(Dir::new).into_iter().flatten().flatten();
        entries.filter_map(move |entry| {
            let name = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.'))?;
            let target = format!("{folder}/{name}");
            let path = target.strip_prefix("/sys").unwrap_or(&target).trim_start_matches('/');
            Some(Entry { path: path.to_owned(), node: Node::Link(target.clone()) })
        })
    };
    // The version is a file that the tree has.
    listed("/dev/dri")
        .chain(listed("/sys/class/drm"))
        .filter(|e| !e.path.ends_with("version"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_the_machine_is_not_shadowed() {
        let taken = |path: &Path| {
            ["/dev/dri/card1", "/dev/dri/renderD128"].iter().any(|t| path == Path::new(t))
        };
        let first: Vec<_> = free_nodes_beside(taken).take(2).collect();
        assert_eq!(first, [2, 3].map(|card| DrmNodes { card, render: 128 + card }));
    }
}
