//! `peerdma platforms`: the ready-made machines that `--platform` knows by name, and their files.

use crate::args::machine::Platforms;
use crate::console::failure::{Failure, Outcome};
use crate::console::style;
use pcie::{Platform, READY_MADE, ReadyMade, Role};
use serde_json::json;
use std::path::Path;

/// The command.
pub fn platforms(arguments: &Platforms) -> Outcome {
    match &arguments.name {
        Some(name) => print(name),
        None if arguments.json => {
            style::json(&json!({ "platforms": rows().map(Row::json).collect::<Vec<_>>() }));
            Ok(0)
        }
        None => {
            list();
            Ok(0)
        }
    }
}

/// A platform and what there is on it.
struct Row {
    ready: ReadyMade,
    hcas: usize,
    gpus: usize,
    data_direct: bool,
}

fn rows() -> impl Iterator<Item = Row> {
    READY_MADE.into_iter().map(|ready| {
        let platform = Platform::from_toml(ready.text).expect("the embedded files are tested");
        Row {
            ready,
            hcas: platform.with_role(Role::Hca).count(),
            gpus: platform.with_role(Role::Gpu).count(),
            data_direct: platform.with_role(Role::DataDirect).next().is_some(),
        }
    })
}

impl Row {
    fn json(self) -> serde_json::Value {
        json!({
            "name": self.ready.name,
            "summary": self.ready.summary(),
            "hcas": self.hcas,
            "gpus": self.gpus,
            "data_direct": self.data_direct,
        })
    }

    fn cells(self) -> Vec<String> {
        let data_direct = if self.data_direct { "yes" } else { "no" };
        let (hcas, gpus) = (self.hcas.to_string(), self.gpus.to_string());
        let what = self.ready.summary().trim_end_matches('.').to_owned();
        vec![self.ready.name.to_owned(), hcas, gpus, data_direct.to_owned(), what]
    }
}

fn list() {
    let heading = ["NAME", "HCAS", "GPUS", "DATA DIRECT", "WHAT"];
    let table = style::headed(heading, rows().map(Row::cells));
    // Not cut to the terminal's width: what a platform is, is told in the last column alone.
    style::show(style::table(&table, &[1, 2]), 1);
}

fn print(name: &str) -> Outcome {
    let ready = ReadyMade::called(Path::new(name)).ok_or_else(|| {
        Failure::new(format_args!("there is no ready-made platform {name:?}"))
            .remedy("`peerdma platforms` lists them")
    })?;
    style::print(ready.text.as_bytes())
}
