//! Registered memory of each kind: how long its registration takes, and how fast RDMA is over it
//! beside pinned memory, in the same run (`tests/c/memory/memory_speed.c`).

use super::program::Figures;
use super::table::{Row, Table};
use anyhow::Result;

/// The software GPU's node: on a machine with GPUs of its own the first beside them.
pub(super) const NODE: &str =
    "/dev/dri/renderD$(ls /dev/dri | grep -c ^render | awk '{ print 128 + $1 - 2 }')";
/// A platform on which the device does not reach the GPU.
const APART: &str = "--platform=cloud";

/// Kinds of registration, as the program calls them, and in words.
const KINDS: [(&str, &str); 7] = [
    ("pinned", "host memory, pinned"),
    ("dmabuf", "dma-buf, dynamic"),
    ("dmabuf-pinned", "dma-buf, pinned"),
    ("odp", "host memory, on demand"),
    ("implicit-odp", "everything, on demand (any size)"),
    ("device-private", "pages in a GPU, on demand"),
    ("peer-direct", "GPU memory by its address"),
];
const SIZES: [(u64, &str); 3] = [(4 << 10, "4 KiB"), (1 << 20, "1 MiB"), (1 << 30, "1 GiB")];

/// Measures it all.
pub(super) fn measure(rounds: u32) -> Result<Table> {
    let (mut near, mut apart) = (Figures::default(), Figures::default());
    let program = "memory_speed";
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        near.run(program, &format!("register {NODE}"), &[])?;
        near.run(program, &format!("steady {NODE} 3"), &[])?;
        near.run(program, "fault", &[])?;
        near.run(program, "private 3", &[])?;
        apart.run(program, "private 3", &[APART])?;
    }
    let mut rows = Vec::new();
    for (size, size_in_words) in SIZES {
        let pinned = near.of(&format!("register pinned {size}"));
        for (kind, in_words) in KINDS {
            let name = format!("register {size_in_words}: {in_words}");
            let took = near.of(&format!("register {kind} {size}"));
            rows.push(Row::plain(name, "us", took).ratio_to(&pinned));
        }
    }
    let pinned = near.of("steady pinned");
    let kinds = KINDS.iter().filter(|(kind, _)| !near.of(&format!("steady {kind}")).is_empty());
    for (kind, in_words) in kinds {
        let figures = near.of(&format!("steady {kind}"));
        let name = format!("WRITE 1 MiB, steady: {in_words}");
        rows.push(Row::plain(name, "GB/s", figures).ratio_to(&pinned));
    }
    let pinned = near.of("first pinned");
    rows.push(Row::plain("WRITE 1 MiB, first touch: host memory, pinned", "GB/s", pinned.clone()));
    let name = "WRITE 1 MiB, first touch: host memory, on demand";
    rows.push(Row::plain(name, "GB/s", near.of("first odp")).ratio_to(&pinned));
    let (fault, present) = (near.of("fault"), near.of("present"));
    let service = fault.iter().zip(&present).map(|(fault, present)| fault - present).collect();
    rows.push(Row::plain("a page fault's service, beyond a WRITE of 4 KiB", "us", service));
    rows.push(Row::plain("WRITE of 4 KiB to a present page", "us", present));
    let reached = near.of("private");
    rows.push(Row::plain("READ 1 MiB, pages in a GPU: reached there", "GB/s", reached.clone()));
    let name = "READ 1 MiB, pages in a GPU: brought home";
    rows.push(Row::plain(name, "GB/s", apart.of("private")).ratio_to(&reached));
    Ok(Table { against: "ratio to pinned, or to reached there", rows })
}
