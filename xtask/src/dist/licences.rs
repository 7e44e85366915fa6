//! The licences of what is linked into a package: most ask that their text goes with every copy.
//! Cargo says which crates these are and where their sources lie, and each source has the texts.
//! Crates with the same text share it.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// What is linked: the program, and the libraries in it.
const ROOTS: [&str; 6] = [
    "peerdma-cli",
    "peerdma-verbs",
    "peerdma-libcuda",
    "peerdma-libcudart12",
    "peerdma-libcudart13",
    "peerdma-libnvml",
];
/// How names of files with terms begin.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"];
/// What is no crate.
const HEAD: &str = "\
Parts of this package are others' work, linked into its program and libraries: Rust's standard
library, under the MIT licence or the Apache licence 2.0, by the Rust project's developers; and the
crates below, each list before the terms that it came with.
";

/// A crate of others.
#[derive(PartialEq, Eq, Debug)]
struct Crate {
    /// With its version and its licence's name.
    words: String,
    manifest: String,
}

/// The texts, with the crates that each is of.
///
/// # Errors
/// Cargo does not say what is linked, or a source cannot be read.
pub fn of_others(tree: &Path, triple: &str) -> Result<String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", triple]);
    let output = cargo.current_dir(tree).output().context("cargo metadata")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {error}");
    let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for other in linked(&metadata) {
        let folder = Path::new(&other.manifest).parent().context("a manifest in a folder")?;
        for text in texts(folder)? {
            by_text.entry(text).or_default().push(other.words.clone());
        }
    }
    let mut groups: Vec<(Vec<String>, String)> =
        by_text.into_iter().map(|(text, crates)| (crates, text)).collect();
    groups.sort();
    let mut out = HEAD.to_owned();
    for (crates, text) in groups {
        let line = "-".repeat(72);
        write!(out, "\n{line}\n{}\n{line}\n\n{text}\n", crates.join("\n"))?;
    }
    Ok(out)
}

/// Crates of others that are linked, in order: what is needed to build only is not.
fn linked(metadata: &Value) -> Vec<Crate> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let id = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let by_id: BTreeMap<String, &Value> =
        packages.iter().map(|one| (id(&one["id"]), one)).collect();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let needs: BTreeMap<String, &Value> = nodes.iter().map(|one| (id(&one["id"]), one)).collect();
    let is_linked = |dependency: &Value| {
        list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
    };
    let is_root = |one: &&Value| one["name"].as_str().is_some_and(|name| ROOTS.contains(&name));
    let mut todo: Vec<String> = packages.iter().filter(is_root).map(|one| id(&one["id"])).collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = todo.pop() {
        if let Some(node) = needs.get(&next).filter(|_| seen.insert(next.clone())) {
            let needed = list(&node["deps"]);
            todo.extend(needed.iter().filter(|one| is_linked(one)).map(|one| id(&one["pkg"])));
        }
    }
    let others = seen.iter().filter_map(|id| by_id.get(id)).filter(|one| !one["source"].is_null());
    let mut crates: Vec<Crate> = others
        .map(|one| Crate {
            words: format!(
                "{} {} ({})",
                id(&one["name"]),
                id(&one["version"]),
                id(&one["license"])
            ),
            manifest: id(&one["manifest_path"]),
        })
        .collect();
    crates.sort_by(|one, other| one.words.cmp(&other.words));
    crates
}

/// The terms in a source's folder.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            let text = std::fs::read(entry.path())?;
            texts.push(String::from_utf8_lossy(&text).trim_end().to_owned());
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_linked_through_others_counts_and_what_only_builds_does_not() {
        let package = |name: &str, source: Value| {
            json!({ "id": name, "name": name, "version": "1", "license": "MIT", "source": source,
                    "manifest_path": format!("/{name}/Cargo.toml") })
        };
        let needs =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [
                package("peerdma-cli", json!(null)),
                package("ours", json!(null)),
                package("linked", json!("registry")),
                package("builds", json!("registry")),
                package("stranger", json!("registry")),
            ],
            "resolve": { "nodes": [
                { "id": "peerdma-cli", "deps": [needs("ours", json!(null))] },
                { "id": "ours", "deps": [needs("linked", json!(null)), needs("builds", json!("build"))] },
                { "id": "linked", "deps": [] },
                { "id": "builds", "deps": [] },
                { "id": "stranger", "deps": [] },
            ] }
        });
        let words = "linked 1 (MIT)".to_owned();
        let expected = Crate { words, manifest: "/linked/Cargo.toml".to_owned() };
        assert_eq!(linked(&metadata), [expected]);
    }

    #[test]
    fn terms_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("License-MIT.txt"), "terms\n\n").unwrap();
        std::fs::write(folder.path().join("README"), "no terms").unwrap();
        assert_eq!(texts(folder.path()).unwrap(), ["terms"]);
    }
}
