//! The nodes of a GPU as `/sys/class/drm` and `/dev/dri` show them (`drivers/gpu/drm/drm_sysfs.c`).

use crate::pci::PciFunction;
use crate::tree::{Builder, Entry};

/// Major device number of DRM nodes.
pub const DRM_MAJOR: u32 = 226;

/// Minor device number of `renderD128`, and the number in its name; primary nodes have those below.
pub const DRM_RENDER_BASE_MINOR: u32 = 128;

/// The minor device numbers of a GPU's nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DrmNodes {
    /// The number of `card<number>`.
    pub card: u32,
    /// The number of `renderD<number>`, from [`DRM_RENDER_BASE_MINOR`] on.
    pub render: u32,
}

/// What amdgpu's driver shows of a GPU beside its nodes (`amdgpu_vram_mgr.c`, `amdgpu_device.c`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrmMemory {
    /// Name of the product.
    pub product: String,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// Bytes of it that the BAR shows.
    pub visible_bytes: u64,
}

fn name(minor: u32) -> String {
    let kind = if minor < DRM_RENDER_BASE_MINOR { "card" } else { "renderD" };
    format!("{kind}{minor}")
}

/// Path of the node with a minor number.
pub fn drm_node(minor: u32) -> String {
    format!("/dev/dri/{}", name(minor))
}

/// What the GPU at `function` shows for its nodes.
pub fn drm_entries(function: &PciFunction, nodes: DrmNodes, memory: &DrmMemory) -> Vec<Entry> {
    let mut tree = Builder::default();
    for (file, text) in [
        ("mem_info_vram_total", memory.total_bytes.to_string()),
        ("mem_info_vis_vram_total", memory.visible_bytes.to_string()),
        ("product_name", memory.product.clone()),
    ] {
        tree.file(&format!("{}/{file}", function.directory()), text + "\n");
    }
    tree.file("class/drm/version", "drm 1.1.0 20060810\n".into());
    for minor in [nodes.card, nodes.render] {
        let name = name(minor);
        let directory = format!("{}/drm/{name}", function.directory());
        tree.file(&format!("{directory}/dev"), format!("{DRM_MAJOR}:{minor}\n"));
        let kind = if minor < DRM_RENDER_BASE_MINOR { "drm_minor" } else { "drm_render_minor" };
        let uevent =
            format!("MAJOR={DRM_MAJOR}\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE={kind}\n");
        tree.file(&format!("{directory}/uevent"), uevent);
        tree.link(&format!("{directory}/device"), format!("../../../{}", function.bdf));
        tree.link_inside(&format!("{directory}/subsystem"), "class/drm");
        tree.link_inside(&format!("class/drm/{name}"), &directory);
        tree.link_inside(&format!("dev/char/{DRM_MAJOR}:{minor}"), &directory);
        tree.link(&format!("dev/dri/{name}"), "/dev/null".into());
    }
    tree.entries
}
