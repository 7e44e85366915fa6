//! Mount namespaces, as containers are to a program: another root file system, or this one without
//! what many containers lack.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What a program finds mounted. Needs root to enter. Network, users and processes are those
/// outside.
#[derive(Clone, Debug, Default)]
pub struct Container {
    root: Option<PathBuf>,
    mounts: Vec<String>,
}

impl Container {
    /// This machine's own root file system.
    pub fn new() -> Container {
        Container::default()
    }

    /// Another root file system, with this machine's `/proc`, `/sys` and `/dev` and an empty
    /// `/tmp`.
    pub fn of(root: &Path) -> Container {
        Container { root: Some(root.to_owned()), mounts: Vec::new() }
    }

    /// An empty folder that nobody can write to in the place of `folder`.
    pub fn without(self, folder: &str) -> Container {
        self.step(format!("mount -t tmpfs -o ro,mode=755 none {folder}"))
    }

    /// `folder` as it is, with other mount options, such as `ro` or `noexec`. `/` with `ro`
    /// includes every folder that is not mounted apart.
    pub fn remount(self, folder: &str, options: &str) -> Container {
        let apart =
            if folder == "/" { "" } else { &format!("mount --rbind {folder} {folder} && ") };
        self.step(format!("{apart}mount -o remount,bind,{options} {folder}"))
    }

    /// An empty folder, to mount others in, in the place of `folder`.
    pub fn empty(self, folder: &str) -> Container {
        let folder = format!("{}{folder}", self.prefix());
        self.step(format!("mkdir -p {folder}; mount -t tmpfs -o mode=755 none {folder}"))
    }

    /// A file or folder of this machine at the path `inside`, to read.
    pub fn bind(self, here: &Path, inside: &str) -> Container {
        let place = format!("{}{inside}", self.prefix());
        let make = if here.is_dir() { "mkdir -p" } else { "touch" };
        let here = here.display();
        let bind = format!("mount --bind {here} {place} && mount -o remount,bind,ro {place}");
        self.step(format!("{make} {place} && {bind}"))
    }

    fn prefix(&self) -> String {
        self.root.as_ref().map(|root| root.display().to_string()).unwrap_or_default()
    }

    fn step(mut self, line: String) -> Container {
        self.mounts.push(line);
        self
    }

    /// Words that run the words after them inside, where `program` is to be found under the same
    /// path as outside.
    pub(crate) fn enter(&self, program: Option<&Path>) -> Vec<OsString> {
        let mut script = vec!["set -e".to_owned()];
        let root = match &self.root {
            Some(root) => {
                let root = root.display().to_string();
                script.push(format!(
                    "mount -t tmpfs -o mode=1777 none {root}/tmp\n\
                     for folder in proc sys dev; do mount --rbind /$folder {root}/$folder; done"
                ));
                root
            }
            None => String::new(),
        };
        if let Some(folder) = program.and_then(Path::parent) {
            // A mount of its own, it keeps its options whatever becomes of the folders around it.
            let folder = folder.display();
            script.push(format!("mkdir -p {root}{folder}; mount --bind {folder} {root}{folder}"));
        }
        script.extend(self.mounts.iter().cloned());
        script.push(format!(r#"exec chroot "{root}/" "$@""#));
        ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
            .map(OsString::from)
            .into_iter()
            .chain([script.join("\n").into(), "container".into()])
            .collect()
    }
}
