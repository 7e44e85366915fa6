//! `peerdma gpu providers`: who makes dma-bufs, what these are, and whether it works here.

use crate::console::failure::Outcome;
use crate::console::style;
use dmabuf::LocalControls;
use gpu::providers::Kind;
use gpu::{Error, Provider, Residence, SoftwareGpu, Traits};
use pcie::{Platform, Role};
use serde_json::{Value, json};
use std::sync::Arc;

/// A provider, as it was found.
struct Found {
    kind: String,
    /// What it is called here, or why it does not work here.
    here: Result<String, Error>,
    traits: Traits,
}

/// Lists them.
pub fn list(platform: &Platform, as_json: bool) -> Outcome {
    let found: Vec<Found> = software(platform).chain(Kind::ALL.into_iter().flat_map(own)).collect();
    if as_json {
        style::json(&json!({ "providers": found.iter().map(object).collect::<Vec<_>>() }));
        return Ok(0);
    }
    let heading = ["PROVIDER", "MEMORY", "EXPORTS", "MMAP", "MOVES", "HERE"];
    let rows = style::headed(heading, found.iter().map(cells));
    style::show(style::table(&rows, &[]), 1);
    // Reasons are sentences, too long for a column.
    for Found { kind, here, .. } in &found {
        if let Err(error) = here {
            style::outln(format_args!("{kind}: {error}"));
        }
    }
    Ok(0)
}

/// The platform's GPUs.
fn software(platform: &Platform) -> impl Iterator<Item = Found> {
    platform.with_role(Role::Gpu).map(|function| {
        let gpu = SoftwareGpu::of(function, Arc::new(LocalControls::default()));
        Found {
            kind: "software".to_owned(),
            here: gpu.map(|gpu| format!("{} at {}", gpu.name(), function.address)),
            traits: SoftwareGpu::TRAITS,
        }
    })
}

/// The machine's own of a kind.
fn own(kind: Kind) -> Vec<Found> {
    let found = |opened: gpu::providers::Opened| {
        let traits = opened.as_ref().map_or(kind.traits(), |provider| provider.traits());
        let here = opened.map(|provider| provider.name().to_owned());
        Found { kind: kind.to_string(), here, traits }
    };
    kind.open().into_iter().map(found).collect()
}

fn cells(found: &Found) -> Vec<String> {
    let Traits { dynamic, mmap, moves, residence } = found.traits;
    let yes_no = |answer: Option<bool>| answer.map_or("?", |yes| if yes { "yes" } else { "no" });
    vec![
        found.kind.clone(),
        residence_name(residence).unwrap_or("?").to_owned(),
        exports(dynamic).unwrap_or("?").to_owned(),
        yes_no(mmap).to_owned(),
        yes_no(moves).to_owned(),
        found.here.clone().unwrap_or_else(|_| "no, see below".to_owned()),
    ]
}

fn exports(dynamic: Option<bool>) -> Option<&'static str> {
    Some(if dynamic? { "dynamic" } else { "static" })
}

fn residence_name(residence: Option<Residence>) -> Option<&'static str> {
    Some(match residence? {
        Residence::Host => "host",
        Residence::Device => "device",
    })
}

fn object(found: &Found) -> Value {
    json!({
        "provider": found.kind,
        "works": found.here.is_ok(),
        "name": found.here.as_ref().ok(),
        "reason": found.here.as_ref().err().map(ToString::to_string),
        "memory": residence_name(found.traits.residence),
        "exports": exports(found.traits.dynamic),
        "mmap": found.traits.mmap,
        "moves": found.traits.moves,
    })
}
