//! `peerdma cdi`: a file by which container runtimes put the software HCA into a container, as the
//! Container Device Interface describes them (`SPEC.md` of cncf-tags/container-device-interface).
//!
//! A device is a set of edits: the libraries and a sysfs tree are mounted at [`PLACE`], and the
//! settings of `peerdma env`, which name them there, are set. Nothing of this shell's environment
//! is in it.

use crate::args::device::Device;
use crate::args::launch::Cdi;
use crate::console::failure::{Context, Failure, Outcome};
use crate::console::style;
use crate::surroundings::{embedded, settings, tree};
use pcie::{Platform, ReadyMade, Role};
use rustix::fs::Mode;
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Vendor and class of the devices.
const KIND: &str = "peerdma.dev/hca";
/// The oldest version of the specification that has all that is used: in it names of devices may
/// begin with a digit.
const VERSION: &str = "0.5.0";
/// Name of the device that is all HCAs of the platform.
const ALL: &str = "all";
/// Folder in the container.
const PLACE: &str = "/opt/peerdma";
/// Folder with the libraries in the container.
const LIBRARIES: &str = "/opt/peerdma/lib";

/// Prints or writes the file. What it has mounted lies in the user's cache, or where a package put
/// it, and stays there.
pub fn cdi(arguments: &Cdi) -> Outcome {
    let device = &arguments.device;
    refuse(device)?;
    // Whoever a container runs as has to read what is mounted.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let folder = embedded::persistent_folder()?.join("cdi");
    embedded::private_folder(&folder).what(format_args!("cannot make {}", folder.display()))?;
    let lib = embedded::for_everybody(&folder)?;
    let file = json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "containerEdits": { "mounts": [mount(&lib, Path::new(LIBRARIES))?] },
        "devices": devices(device, &folder)?,
    });
    match &arguments.output {
        None => style::json(&file),
        Some(path) => write(path, &format!("{file:#}\n")).map_err(|error| {
            Failure::new(format_args!("cannot write {}", path.display()))
                .because(error)
                .remedy("name a file in a folder that is there and that you may write")
        })?,
    }
    Ok(0)
}

/// Options that mean nothing to a container.
fn refuse(device: &Device) -> Outcome<()> {
    if device.library.is_some() {
        return Err(Failure::new("`cdi` has no use for another build of the library")
            .because("its file outlives this process, and with it the folder it would link")
            .remedy("set LD_PRELOAD to that build in the container"));
    }
    if device.trace.is_some() {
        return Err(Failure::new("`cdi` has no use for a trace")
            .because("the file would be in the container, where its folder need not be")
            .remedy("set PEERDMA_TRACE when you start the container"));
    }
    Ok(())
}

/// Each HCA of the platform by its number, and all of them.
fn devices(device: &Device, folder: &Path) -> Outcome<Vec<Value>> {
    let platform = tree::platform(device)?;
    let names: Vec<&str> = platform.with_role(Role::Hca).map(|hca| hca.name.as_str()).collect();
    let mut devices = vec![entry(ALL, &Chosen::whole(device, folder)?, folder)?];
    for (number, name) in names.iter().enumerate() {
        let chosen = match names.len() {
            1 => Chosen::whole(device, folder)?,
            _ => Chosen::one(device, &platform, name, folder)?,
        };
        devices.push(entry(&number.to_string(), &chosen, folder)?);
    }
    Ok(devices)
}

/// What a device shows: the options as on this host and as in the container.
struct Chosen {
    here: Device,
    inside: Device,
}

impl Chosen {
    /// The whole platform.
    fn whole(device: &Device, folder: &Path) -> Outcome<Chosen> {
        let name = platform_of(device);
        if ReadyMade::called(&name).is_some() {
            let chosen = Device { platform: Some(name), ..device.clone() };
            return Ok(Chosen { here: chosen.clone(), inside: chosen });
        }
        Chosen::by_file(device, &text(&name)?, folder)
    }

    /// The platform with no HCA but this one.
    fn one(device: &Device, platform: &Platform, hca: &str, folder: &Path) -> Outcome<Chosen> {
        let name = platform_of(device);
        let whole = match ReadyMade::called(&name) {
            Some(ready) => ready.text.to_owned(),
            None => text(&name)?,
        };
        let others = platform.with_role(Role::Hca).map(|other| other.name.as_str());
        let others: Vec<&str> = others.filter(|other| *other != hca).collect();
        Chosen::by_file(device, &without(&whole, &others)?, folder)
    }

    /// A platform of this text.
    fn by_file(device: &Device, text: &str, folder: &Path) -> Outcome<Chosen> {
        let name = format!("platform-{}.toml", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        let file = folder.join(&name);
        write(&file, text).what(format_args!("cannot write {}", file.display()))?;
        let with = |platform: PathBuf| Device { platform: Some(platform), ..device.clone() };
        Ok(Chosen { here: with(file), inside: with(Path::new(PLACE).join(name)) })
    }
}

/// The platform by its name or file, the default one too: two devices of one container are coherent
/// when each says which platform it is of.
fn platform_of(device: &Device) -> PathBuf {
    device.platform.clone().unwrap_or_else(|| pcie::READY_MADE[0].name.into())
}

fn text(file: &Path) -> Outcome<String> {
    fs::read_to_string(file).what(format_args!("cannot read {}", file.display()))
}

/// A platform file without the functions of these names, and without those that belong to them.
fn without(text: &str, names: &[&str]) -> Outcome<String> {
    let failure = "cannot take an HCA out of the platform";
    let mut file: toml::Table = text.parse().what(failure)?;
    if let Some(functions) = file.get_mut("function").and_then(toml::Value::as_array_mut) {
        let named = |function: &toml::Value, key: &str| {
            let name = function.get(key).and_then(toml::Value::as_str);
            name.is_some_and(|name| names.contains(&name))
        };
        functions.retain(|function| !named(function, "name") && !named(function, "of"));
    }
    let lines = file.iter().map(|(key, value)| format!("{} = {}\n", quoted(key), inline(value)));
    Ok(lines.collect())
}

/// A value on one line. (What parses platform files writes none, for it is in the preloaded library
/// too.)
fn inline(value: &toml::Value) -> String {
    use toml::Value::{Array, Boolean, Datetime, Float, Integer, String, Table};
    match value {
        String(text) => quoted(text),
        Integer(number) => number.to_string(),
        Float(number) => format!("{number:?}"),
        Boolean(is) => is.to_string(),
        Datetime(time) => time.to_string(),
        Array(values) => {
            format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Table(table) => {
            let pairs = table.iter().map(|(key, of)| format!("{} = {}", quoted(key), inline(of)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A basic string, whose escapes are those of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A device of the file.
fn entry(name: &str, chosen: &Chosen, folder: &Path) -> Outcome<Value> {
    let here = tree::persistent(&chosen.here, folder)?;
    let inside = Path::new(PLACE).join(here.file_name().unwrap_or_default());
    let mut mounts = vec![mount(&here, &inside)?];
    if chosen.here.platform != chosen.inside.platform
        && let (Some(here), Some(inside)) = (&chosen.here.platform, &chosen.inside.platform)
    {
        mounts.push(mount(here, inside)?);
    }
    let nothing_present = |_: &str| None;
    let variables =
        settings::variables_over(&chosen.inside, Path::new(LIBRARIES), &inside, &nothing_present)?;
    let env: Vec<String> = variables
        .iter()
        .map(|(name, value)| Ok(format!("{name}={}", in_utf8(Path::new(value))?)))
        .collect::<Outcome<_>>()?;
    Ok(json!({ "name": name, "containerEdits": { "env": env, "mounts": mounts } }))
}

/// A bind mount that nobody writes through and that programs are loaded from.
fn mount(here: &Path, inside: &Path) -> Outcome<Value> {
    let options = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
    Ok(json!({
        "hostPath": in_utf8(here)?,
        "containerPath": in_utf8(inside)?,
        "options": options,
    }))
}

fn in_utf8(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or("it is not UTF-8").what(format_args!("cannot name {}", path.display()))
}

/// Puts a whole file in place of what is there.
fn write(path: &Path, text: &str) -> io::Result<()> {
    embedded::replace(path, |new| fs::write(new, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_platform_keeps_all_but_the_other_hcas() {
        let dgx = ReadyMade::called(Path::new("dgx")).unwrap().text;
        let whole = Platform::from_toml(dgx).unwrap();
        let names: Vec<&str> = whole.with_role(Role::Hca).map(|hca| hca.name.as_str()).collect();
        assert!(names.len() > 1);
        let one = Platform::from_toml(&without(dgx, &names[1..]).unwrap()).unwrap();
        let left: Vec<&str> = one.with_role(Role::Hca).map(|hca| hca.name.as_str()).collect();
        assert_eq!(left, names[..1]);
        let gpus = |platform: &Platform| platform.with_role(Role::Gpu).count();
        assert_eq!(gpus(&one), gpus(&whole));
        assert!(one.with_role(Role::DataDirect).count() <= 1);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("peerdma-cdi-{}", std::process::id()));
        fs::create_dir_all(folder.join("taken/x")).unwrap();
        assert!(write(&folder.join("taken"), "text").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        write(&folder.join("file"), "text").unwrap();
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "text");
        fs::remove_dir_all(folder).unwrap();
    }
}
