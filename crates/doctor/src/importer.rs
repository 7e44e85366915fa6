//! Which adapters' drivers import dma-bufs, since when, and how (`reg_user_mr_dmabuf` in
//! `drivers/infiniband/hw`).

use crate::Version;
use pcie::Function;

/// How a driver takes a dma-buf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// It lets the buffer move.
    Dynamic,
    /// It pins the buffer.
    Pinned,
    /// It takes none.
    None,
}

/// One driver.
pub(crate) struct Importer {
    pub(crate) driver: &'static str,
    pub(crate) mode: Mode,
    /// The version from which on a kernel has it for certain.
    pub(crate) since: Version,
    /// The version before which no kernel has it.
    pub(crate) not_before: Version,
}

const DRIVERS: &[Importer] = &[
    Importer {
        driver: "mlx5_core",
        mode: Mode::Dynamic,
        since: Version(5, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "efa",
        mode: Mode::Pinned,
        since: Version(6, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "irdma",
        mode: Mode::Pinned,
        since: Version(6, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "ice",
        mode: Mode::Pinned,
        since: Version(6, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "i40e",
        mode: Mode::Pinned,
        since: Version(6, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "bnxt_en",
        mode: Mode::Pinned,
        since: Version(6, 12),
        not_before: Version(5, 12),
    },
    Importer {
        driver: "mana",
        mode: Mode::Pinned,
        since: Version(7, 3),
        not_before: Version(6, 13),
    },
    Importer {
        driver: "ionic",
        mode: Mode::Pinned,
        since: Version(7, 3),
        not_before: Version(6, 13),
    },
    Importer {
        driver: "mlx4_core",
        mode: Mode::None,
        since: Version(0, 0),
        not_before: Version(0, 0),
    },
    Importer { driver: "hns3", mode: Mode::None, since: Version(0, 0), not_before: Version(0, 0) },
    Importer { driver: "erdma", mode: Mode::None, since: Version(0, 0), not_before: Version(0, 0) },
];

/// The driver of an adapter: the bound one, else the one its vendor's devices have.
pub(crate) fn of(adapter: &Function) -> Option<&'static Importer> {
    let named = |name: &str| DRIVERS.iter().find(|importer| importer.driver == name);
    match (&adapter.driver, adapter.id) {
        (Some(driver), _) => named(driver),
        (None, Some((0x15b3, device))) if device >= 0x1011 => named("mlx5_core"),
        (None, Some((0x15b3, _))) => named("mlx4_core"),
        (None, Some((0x1d0f, 0xefa0..=0xefaf))) => named("efa"),
        (None, Some((0x1dd8, _))) => named("ionic"),
        _ => None,
    }
}
