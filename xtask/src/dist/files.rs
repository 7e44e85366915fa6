//! The files of a package before they are in an archive: paths in order, each a file or a link, and
//! the archive formats' common rule that nothing of the machine that packs is kept. Owners are
//! root, times are one time, modes are 0755 or 0644.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::Path;

/// Files and links by their paths, which begin with no slash.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Files(BTreeMap<String, Entry>);

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    File {
        content: Vec<u8>,
        executable: bool,
    },
    /// A symbolic link, and where it leads.
    Link(String),
}

impl Files {
    /// Adds a text, or whatever nobody executes.
    pub fn text(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.put(path, Entry::File { content: content.into(), executable: false });
    }

    /// Adds a program or a library.
    pub fn executable(&mut self, path: &str, content: Vec<u8>) {
        self.put(path, Entry::File { content, executable: true });
    }

    fn put(&mut self, path: &str, entry: Entry) {
        self.0.insert(path.to_owned(), entry);
    }

    /// Adds libraries, links and folders of a folder of this machine, below a path.
    ///
    /// # Errors
    /// One cannot be read, or has a name that is not UTF-8.
    pub fn libraries(&mut self, path: &str, folder: &Path) -> Result<()> {
        for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("{name:?} is not UTF-8"))?;
            let (from, to) = (entry.path(), format!("{path}/{name}"));
            if entry.file_type()?.is_dir() {
                self.libraries(&to, &from)?;
            } else if entry.file_type()?.is_symlink() {
                let target = std::fs::read_link(&from)?;
                let target = target.to_str().context("a link in UTF-8")?;
                self.put(&to, Entry::Link(target.to_owned()));
            } else {
                self.executable(&to, std::fs::read(&from)?);
            }
        }
        Ok(())
    }

    /// The same below other folders: a path goes to the first rule whose beginning it has, and each
    /// rule is a beginning and what stands there instead. What no rule has stays behind.
    pub fn moved(&self, rules: &[(&str, &str)]) -> Files {
        let place = |path: &String| {
            rules.iter().find_map(|(from, to)| Some(format!("{to}{}", path.strip_prefix(from)?)))
        };
        let entries = self.0.iter().filter_map(|(path, entry)| Some((place(path)?, entry.clone())));
        Files(entries.collect())
    }

    /// In order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// The content of a file.
    ///
    /// # Errors
    /// There is none at the path.
    pub fn content(&self, path: &str) -> Result<&[u8]> {
        match self.0.get(path) {
            Some(Entry::File { content, .. }) => Ok(content),
            _ => anyhow::bail!("the package has no file {path}"),
        }
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        let sizes = self.0.values().map(|entry| match entry {
            Entry::File { content, .. } => content.len() as u64,
            Entry::Link(_) => 0,
        });
        sizes.sum()
    }

    /// Makes the files in a folder of this machine.
    ///
    /// # Errors
    /// One cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for (path, entry) in self.entries() {
            ensure!(!path.starts_with('/'), "{path} would not be in the folder");
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            match entry {
                Entry::File { content, .. } => std::fs::write(&path, content)?,
                Entry::Link(target) => std::os::unix::fs::symlink(target, &path)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_rule_has_stays_behind() {
        let mut files = Files::default();
        files.text("share/doc/a", "a");
        files.text("share/b", "b");
        files.text("bin/c", "c");
        let moved = files.moved(&[("share/doc/", "usr/doc/"), ("share/", "usr/share/")]);
        let paths: Vec<&str> = moved.entries().map(|(path, _)| path).collect();
        assert_eq!(paths, ["usr/doc/a", "usr/share/b"]);
        assert_eq!((moved.size(), moved.content("usr/doc/a").unwrap()), (2, b"a".as_slice()));
        assert!(moved.content("bin/c").is_err());
    }

    #[test]
    fn a_folder_is_read_with_its_links_and_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir_all(from.join("cuda")).unwrap();
        std::fs::write(from.join("cuda/liba.so.1"), "library").unwrap();
        std::os::unix::fs::symlink("liba.so.1", from.join("cuda/liba.so")).unwrap();
        let mut files = Files::default();
        files.libraries("lib", &from).unwrap();
        files.write(&to).unwrap();
        let mut again = Files::default();
        again.libraries("lib", &to.join("lib")).unwrap();
        assert_eq!((&files, files.entries().count()), (&again, 2));
    }
}
