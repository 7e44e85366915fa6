//! `peerdma env`: the settings of `run`, to keep.

use crate::args::launch::Env;
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::surroundings::settings::{self, Variables};
use crate::surroundings::{embedded, tree};
use std::ffi::OsStr;

/// Prints the settings. Library and tree lie in the user's cache and stay there.
pub fn env(arguments: &Env) -> Outcome {
    let device = &arguments.device;
    let lib = match &device.library {
        None => embedded::unpack_persistent()?,
        Some(_) => {
            return Err(Failure::new("`env` has no use for another build of the library")
                .because(
                    "its settings outlive this process, and with them the folder it would link",
                )
                .remedy("set LD_PRELOAD to that build by hand, or use `peerdma run`"));
        }
    };
    let tree = tree::persistent(device, &embedded::persistent_folder()?)?;
    let variables = settings::variables(device, &lib, &tree)?;
    let form = if arguments.json {
        return json(&variables);
    } else if arguments.fish {
        fish
    } else if arguments.docker {
        docker
    } else {
        sh
    };
    for (name, value) in &variables {
        style::outln(format_args!("{}", form(name, text(name, value)?)));
    }
    Ok(0)
}

fn json(variables: &Variables) -> Outcome {
    let mut object = serde_json::Map::new();
    for (name, value) in variables {
        object.insert((*name).into(), text(name, value)?.into());
    }
    style::json(&object.into());
    Ok(0)
}

fn text<'a>(name: &str, value: &'a OsStr) -> Outcome<&'a str> {
    value.to_str().ok_or("it is not UTF-8").what(format_args!("cannot print the value of {name}"))
}

fn sh(name: &str, value: &str) -> String {
    format!("export {name}='{}'", value.replace('\'', r"'\''"))
}

fn fish(name: &str, value: &str) -> String {
    format!("set -gx {name} '{}'", value.replace('\\', r"\\").replace('\'', r"\'"))
}

fn docker(name: &str, value: &str) -> String {
    let quoted: String = value
        .chars()
        .flat_map(|c| matches!(c, '"' | '\\' | '$').then_some('\\').into_iter().chain([c]))
        .collect();
    format!("ENV {name}=\"{quoted}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_survives_each_shell() {
        assert_eq!(sh("A", "it's"), r"export A='it'\''s'");
        assert_eq!(fish("A", r"it's \"), r"set -gx A 'it\'s \\'");
        assert_eq!(docker("A", r#"a "b" $c"#), r#"ENV A="a \"b\" \$c""#);
    }
}
