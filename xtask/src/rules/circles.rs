//! Circles of files: files of a crate each of which uses something of the next, and the last of the
//! first. Two or three that belong together may; more can only be read all at once.
//!
//! A file uses the file that defines what it names. A re-export is looked through and is no use of
//! its own, and neither is the declaration of a module. What only tests see is left out.

use super::modules::{Crate, Module, Names, Use};
use super::workspace::{crate_roots, crates, within};
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that may use each other in a circle.
const MOST: usize = 3;

/// The large circles of every crate.
pub fn broken(root: &Path) -> Vec<String> {
    let of = |room: &PathBuf| -> Vec<String> {
        let place = within(root, room);
        let of_root = |crate_root: PathBuf| match large(&crate_root) {
            Ok(circles) => circles.iter().map(|circle| in_words(&place, room, circle)).collect(),
            Err(error) => vec![format!("{place} cannot be read: {error:#}")],
        };
        crate_roots(room).flat_map(of_root).collect()
    };
    crates(root).iter().flat_map(of).collect()
}

fn in_words(place: &str, room: &Path, circle: &[PathBuf]) -> String {
    let names: Vec<String> = circle.iter().map(|file| within(&room.join("src"), file)).collect();
    let count = names.len();
    format!("{place} has {count} files that use each other: {}", names.join(", "))
}

/// The circles of more files than may be in one, of the crate with this root.
///
/// # Errors
/// A file cannot be read, or is no Rust.
fn large(root: &Path) -> Result<Vec<Vec<PathBuf>>> {
    let found = Crate::read(root)?;
    let uses = Uses::of(&found);
    let circles = circles(found.files.len(), &uses.0).into_iter();
    let named = |circle: Vec<usize>| circle.into_iter().map(|file| found.files[file].clone());
    Ok(circles.filter(|circle| circle.len() > MOST).map(|circle| named(circle).collect()).collect())
}

/// The files that each file uses.
struct Uses(BTreeMap<usize, BTreeSet<usize>>);

/// What a path leads to.
#[derive(Clone, Copy)]
enum Place {
    /// A module.
    Module(usize),
    /// Something that this module defines.
    In(usize),
}

impl Place {
    fn module(self) -> usize {
        let (Place::Module(module) | Place::In(module)) = self;
        module
    }
}

/// Paths that are being followed, so that those which lead to each other end.
type Followed = BTreeSet<(usize, Names)>;

impl Uses {
    fn of(of: &Crate) -> Uses {
        let mut uses = Uses(BTreeMap::new());
        for (index, module) in of.modules.iter().enumerate() {
            for path in module.paths.iter().filter(|path| of.leads_into_it(index, path)) {
                uses.path(of, index, path);
            }
            for taken in &module.uses {
                uses.taken(of, index, taken);
            }
        }
        uses
    }

    fn add(&mut self, of: &Crate, user: usize, used: usize) {
        let (user, used) = (of.modules[user].file, of.modules[used].file);
        if user != used {
            self.0.entry(user).or_default().insert(used);
        }
    }

    fn path(&mut self, of: &Crate, user: usize, path: &[String]) {
        let Some(place) = of.place(user, path, true, &Followed::new()) else { return };
        if let (Place::Module(_), Some(last)) = (place, path.last()) {
            // What is used of a module that is only named, the paths through it say.
            let is_relative = ["super", "self", "crate"].contains(&&**last);
            if is_relative || of.modules[user].heads.contains(last) {
                return;
            }
        }
        self.add(of, user, place.module());
    }

    fn taken(&mut self, of: &Crate, user: usize, taken: &Use) {
        let module = &of.modules[user];
        if taken.name == "*" {
            if !taken.is_public {
                self.all(of, user, &taken.path[..taken.path.len() - 1]);
            }
            return;
        }
        if !taken.is_public || module.words.contains(&taken.name) {
            self.path(of, user, &taken.path);
        }
    }

    /// What a module uses of another that it has taken everything of.
    fn all(&mut self, of: &Crate, user: usize, path: &[String]) {
        let place = of.place(user, path, true, &Followed::new());
        let Some(Place::Module(other)) = place else { return };
        let (own, from) = (&of.modules[user], &of.modules[other]);
        let names = from.items.iter().chain(from.children.keys());
        let names = names.chain(from.uses.iter().map(|taken| &taken.name));
        let is_own = |name: &str| own.items.contains(name) || own.knows(name);
        for name in names.filter(|name| own.words.contains(*name) && !is_own(name)) {
            if let Some(place) = of.member(other, name, &Followed::new()) {
                self.add(of, user, place.module());
            }
        }
    }
}

impl Module {
    fn taken(&self, name: &str) -> Option<&Use> {
        self.uses.iter().find(|taken| taken.name == name)
    }

    fn globs(&self) -> impl Iterator<Item = &[String]> {
        let globs = self.uses.iter().filter(|taken| taken.name == "*");
        globs.map(|taken| &taken.path[..taken.path.len() - 1])
    }

    /// Whether it has a module of this name, or has taken something so called.
    fn knows(&self, name: &str) -> bool {
        self.children.contains_key(name) || self.taken(name).is_some()
    }
}

impl Crate {
    /// Whether a path in a module's text begins in this crate, and not with a type.
    fn leads_into_it(&self, module: usize, path: &[String]) -> bool {
        let own = &self.modules[module];
        let first = path[0].as_str();
        if ["crate", "super", "self"].contains(&first) || own.children.contains_key(first) {
            return true;
        }
        let taken = own.taken(first);
        taken.is_some_and(|taken| {
            let place = self.place(module, &taken.path, true, &Followed::new());
            matches!(place, Some(Place::Module(_)))
        })
    }

    /// Where a path leads, seen from a module; `None` for what is outside of the crate.
    fn place(
        &self,
        from: usize,
        path: &[String],
        is_whole: bool,
        followed: &Followed,
    ) -> Option<Place> {
        let key = (from, path.to_vec());
        if followed.contains(&key) || path.is_empty() {
            return None;
        }
        let mut followed = followed.clone();
        followed.insert(key);
        let (mut module, mut rest) = self.start(from, path, is_whole)?;
        while let [name, after @ ..] = rest {
            let own = &self.modules[module];
            if let Some(&child) = own.children.get(name) {
                (module, rest) = (child, after);
                continue;
            }
            match self.member_of(module, name, from, path, &followed)? {
                Place::Module(found) => (module, rest) = (found, after),
                place => return Some(place),
            }
        }
        Some(Place::Module(module))
    }

    /// The module in which a path begins, and the rest of the path.
    fn start<'a>(
        &self,
        from: usize,
        path: &'a [String],
        is_whole: bool,
    ) -> Option<(usize, &'a [String])> {
        let own = &self.modules[from];
        match path[0].as_str() {
            "crate" => Some((0, &path[1..])),
            "self" | "super" => {
                let (mut module, mut rest) = (from, path);
                while let [name, after @ ..] = rest {
                    match name.as_str() {
                        "self" => {}
                        "super" => module = self.modules[module].parent?,
                        _ => break,
                    }
                    rest = after;
                }
                Some((module, rest))
            }
            first => {
                let is_other = own.taken(first).is_some_and(|taken| taken.path != path);
                let is_here =
                    own.children.contains_key(first) || is_other || own.items.contains(first);
                (is_here || !is_whole).then_some((from, path))
            }
        }
    }

    /// What a name in a module is, on the way of `path`.
    fn member_of(
        &self,
        module: usize,
        name: &str,
        from: usize,
        path: &[String],
        followed: &Followed,
    ) -> Option<Place> {
        let own = &self.modules[module];
        let taken = own.taken(name).filter(|_| !own.items.contains(name));
        if let Some(taken) = taken {
            if taken.path == path && module == from {
                return None;
            }
            return self.place(module, &taken.path, true, followed);
        }
        if own.items.contains(name) {
            return Some(Place::In(module));
        }
        for glob in own.globs() {
            let place = self.place(module, glob, true, followed);
            if let Some(Place::Module(other)) = place.filter(|place| place.module() != module)
                && let Some(found) = self.member(other, name, followed)
            {
                return Some(found);
            }
        }
        // A macro may have made it here.
        Some(Place::In(module))
    }

    /// What a name is to those who take it of a module; `None` where there is none.
    fn member(&self, module: usize, name: &str, followed: &Followed) -> Option<Place> {
        let own = &self.modules[module];
        if own.items.contains(name) {
            return Some(Place::In(module));
        }
        if let Some(&child) = own.children.get(name) {
            return Some(Place::Module(child));
        }
        if let Some(taken) = own.taken(name)
            && let Some(place) = self.place(module, &taken.path, true, followed)
        {
            return Some(place);
        }
        own.globs().find_map(|glob| {
            let mut key = glob.to_vec();
            key.push(name.to_owned());
            let key = (module, key);
            if followed.contains(&key) {
                return None;
            }
            let mut followed = followed.clone();
            followed.insert(key);
            match self.place(module, glob, true, &followed)? {
                Place::Module(other) if other != module => self.member(other, name, &followed),
                _ => None,
            }
        })
    }
}

/// The sets of files that reach each other, each with more than one.
fn circles(files: usize, uses: &BTreeMap<usize, BTreeSet<usize>>) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..files).map(|file| reached(file, uses)).collect();
    let mut found: Vec<Vec<usize>> = (0..files)
        .map(|file| {
            let meets = |other: &usize| reached[*other].contains(&file);
            reached[file].iter().copied().filter(meets).collect()
        })
        .filter(|circle: &Vec<usize>| circle.len() > 1)
        .collect();
    found.sort();
    found.dedup();
    found
}

/// All files that a file uses, by way of others too.
fn reached(file: usize, uses: &BTreeMap<usize, BTreeSet<usize>>) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut todo = vec![file];
    while let Some(file) = todo.pop() {
        let used = uses.get(&file).into_iter().flatten();
        todo.extend(used.filter(|used| found.insert(**used)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles of a crate of these files, by the names of the files.
    fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let circles = large(&folder.path().join("lib.rs")).unwrap();
        let name = |path: PathBuf| {
            path.strip_prefix(folder.path()).unwrap().to_string_lossy().into_owned()
        };
        let names = |circle: Vec<PathBuf>| -> Vec<String> {
            let mut names: Vec<String> = circle.into_iter().map(name).collect();
            names.sort();
            names
        };
        circles.into_iter().map(names).collect()
    }

    const RING: [(&str, &str); 5] = [
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() { crate::c::c() }"),
        ("c/mod.rs", "mod inner; pub use inner::c;"),
        ("c/inner.rs", "use super::super::d; pub fn c() { d::d() }"),
    ];

    #[test]
    fn four_files_that_use_each_other_are_told() {
        let ring = |d: &'static str| circles_of(&[RING.as_slice(), &[("d.rs", d)]].concat());
        let all = vec![vec!["a.rs", "b.rs", "c/inner.rs", "d.rs"]];
        assert_eq!(ring("use crate::A; pub fn d() { let _: A; }"), all, "by a re-export");
        assert_eq!(ring("use crate::*; pub fn d() { let _: A; }"), all, "by all of the root");
        assert_eq!(ring("pub fn d() { let _: crate::a::A; }"), all, "by a path");
        assert_eq!(ring("pub fn d() { use crate::A; let _: A; }"), all, "within a function");
    }

    #[test]
    fn names_alone_make_no_circle() {
        let ring = |d: &'static str| circles_of(&[RING.as_slice(), &[("d.rs", d)]].concat());
        for d in [
            "pub fn d() {}",
            "pub use crate::A; pub fn d() {}",
            "pub fn d() { let _ = \"crate::A\"; } // crate::A",
            "pub fn d() {} #[cfg(test)] mod tests { use crate::A; fn f() -> A { todo!() } }",
            "use other::A; pub fn d() { let _: A; }",
        ] {
            assert!(ring(d).is_empty(), "{d}");
        }
    }

    #[test]
    fn three_files_may_use_each_other() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "pub struct A(crate::b::B);"),
            ("b.rs", "pub struct B(crate::c::C);"),
            ("c.rs", "pub struct C(Box<crate::a::A>);"),
        ];
        assert!(circles_of(&files).is_empty());
    }
}
