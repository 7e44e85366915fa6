//! Which of the system's tests run in which of two lanes. Where a machine is emulated, the others
//! need not wait for it: they wait more than they compute.

use anyhow::{Context, Result};
use std::path::Path;

/// Folders below `tests/tests` with those that boot machines.
const IN_GUESTS: [&str; 2] = ["guests", "kernel"];

/// Cargo's words for those that boot machines.
///
/// # Errors
/// The manifest of the system's tests is none.
pub fn in_guests(root: &Path) -> Result<Vec<String>> {
    words(root, true)
}

/// Cargo's words for all others.
///
/// # Errors
/// The manifest of the system's tests is none.
pub fn others(root: &Path) -> Result<Vec<String>> {
    Ok([vec!["--lib".to_owned(), "--bins".to_owned()], words(root, false)?].concat())
}

fn words(root: &Path, booting: bool) -> Result<Vec<String>> {
    let file = root.join("tests/Cargo.toml");
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let manifest: toml::Table = text.parse().with_context(|| file.display().to_string())?;
    let tests = manifest.get("test").and_then(toml::Value::as_array).context("no [[test]]")?;
    let text = |test: &toml::Value, key: &str| -> Result<String> {
        let text = test.get(key).and_then(toml::Value::as_str);
        Ok(text.with_context(|| format!("a [[test]] without {key}"))?.to_owned())
    };
    let mut words = Vec::new();
    for test in tests {
        let path = text(test, "path")?;
        let boots = IN_GUESTS.iter().any(|name| path.starts_with(&format!("tests/{name}/")));
        if boots == booting {
            words.extend(["--test".to_owned(), text(test, "name")?]);
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_of_the_system_is_in_one_lane() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = |words: Vec<String>| -> Vec<String> {
            words.into_iter().filter(|word| !word.starts_with("--")).collect()
        };
        let [guests, others] = [in_guests(root), others(root)].map(|words| names(words.unwrap()));
        assert!(guests.contains(&"connectx".to_owned()) && others.contains(&"pingpong".to_owned()));
        assert!(!guests.iter().any(|name| others.contains(name)), "{guests:?}\n{others:?}");
        let manifest = std::fs::read_to_string(root.join("tests/Cargo.toml")).unwrap();
        assert_eq!(guests.len() + others.len(), manifest.matches("[[test]]").count());
    }
}
