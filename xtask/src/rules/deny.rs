//! What `deny.toml` holds the dependencies to, where nothing is installed: each has a licence that
//! is allowed there and comes from a place that is. The suite runs the tool that the file is for,
//! too, where there is one.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};
use std::path::Path;
use std::process::Command;

/// The part of `deny.toml` that counts.
#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

/// What cargo knows of the packages.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for those of this repository.
    source: Option<String>,
}

/// The dependencies that may not be, each with the reason.
pub fn refused(root: &Path) -> Vec<String> {
    let refused = read(root).map(|(deny, packages)| {
        packages
            .iter()
            .filter_map(|package| Some(package.named(&deny.objection(package)?)))
            .collect()
    });
    refused.unwrap_or_else(|error| vec![format!("{error:#}")])
}

fn read(root: &Path) -> Result<(Deny, Vec<Package>)> {
    let text = std::fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let deny = toml::from_str(&text).context("deny.toml")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // What is for other systems only is never fetched.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.args(["metadata", "--format-version", "1", "--filter-platform", &target]);
    let output = command.current_dir(root).output().context("cargo metadata")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {said}");
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok((deny, metadata.packages))
}

impl Package {
    fn named(&self, objection: &str) -> String {
        format!("{} {}: {objection}", self.name, self.version)
    }
}

impl Deny {
    /// Why a package may not be used.
    fn objection(&self, package: &Package) -> Option<String> {
        let source = package.source.as_deref()?;
        let from = source.strip_prefix("registry+").unwrap_or(source);
        if !self.sources.allow_registry.iter().any(|allowed| allowed == from) {
            return Some(format!("{source} is no source that is allowed"));
        }
        let Some(license) = package.license.as_deref() else {
            return Some("no licence".into());
        };
        match Expression::parse_mode(license, ParseMode::LAX) {
            Ok(parsed) if parsed.evaluate(|part| self.allows(part)) => None,
            Ok(_) => Some(format!("{license} is not allowed")),
            Err(error) => Some(format!("{license} is no licence: {}", error.reason)),
        }
    }

    fn allows(&self, part: &LicenseReq) -> bool {
        let part = part.to_string();
        self.licenses.allow.contains(&part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_and_a_source_are_allowed_or_not() {
        let deny = Deny {
            licenses: Licenses { allow: vec!["MIT".into(), "Zlib".into()] },
            sources: Sources { allow_registry: vec!["https://index.example".into()] },
        };
        let objection = |license: Option<&str>, source: Option<&str>| {
            deny.objection(&Package {
                name: "one".into(),
                version: "1.0.0".into(),
                license: license.map(str::to_owned),
                source: source.map(str::to_owned),
            })
        };
        let index = Some("registry+https://index.example");
        for license in ["MIT", "GPL-2.0-only OR MIT", "MIT/Apache-2.0", "MIT AND Zlib"] {
            assert_eq!(objection(Some(license), index), None, "{license}");
        }
        for license in
            ["GPL-2.0-only", "MIT AND Apache-2.0", "Apache-2.0 WITH LLVM-exception", "own"]
        {
            assert!(objection(Some(license), index).is_some(), "{license}");
        }
        assert!(objection(None, index).is_some());
        assert!(objection(Some("MIT"), Some("git+https://somewhere.example")).is_some());
        assert_eq!(objection(None, None), None, "one of this repository");
    }
}
