//! Devices that are easily taken for others, by id and class, and by name.

use super::*;
use pcie::{Address, Below};

fn port() -> Below {
    Below::Port("00:01.0".parse::<Address>().unwrap())
}

fn with_ids(vendor: u16, device: u16, class: u32, below: Below) -> Function {
    let id = Some((vendor, device));
    Function {
        id,
        class: Some(class),
        ..Function::new("01:00.0".parse().unwrap(), Kind::Endpoint, below)
    }
}

#[test]
fn classes_and_vendors() {
    let of = |vendor, device, class, below| role(&with_ids(vendor, device, class, below));
    for (vendor, device, class, expected) in [
        (NVIDIA, 0x2330, 0x030200, Role::Gpu),
        (NVIDIA, 0x1b80, 0x030000, Role::Gpu),
        (NVIDIA, 0x22a3, 0x068000, Role::NvSwitch),
        (NVIDIA, 0x1af1, 0x068000, Role::NvSwitch),
        (AMD, 0x74a1, 0x120000, Role::Gpu),
        (AMD, 0x738c, 0x038000, Role::Gpu),
        (INTEL, 0x56c0, 0x038000, Role::Gpu),
        (HABANA, 0x1020, 0x120000, Role::Gpu),
        (INTEL, 0x2250, 0x0b4000, Role::Gpu),
        (INTEL, 0x37c8, 0x0b4000, Role::Other),
        (INTEL, 0x09c4, 0x120000, Role::Fpga),
        (INTEL, 0x0b30, 0x120000, Role::Fpga),
        (INTEL, 0x643e, 0x120000, Role::Other),
        (0x10ee, 0x5000, 0x120000, Role::Fpga),
        (0x1a03, 0x2000, 0x030000, Role::Other),
        (0x1af4, 0x1050, 0x038000, Role::Other),
        (MELLANOX, 0x1021, 0x020700, Role::Hca),
        (MELLANOX, 0x2100, 0x080100, Role::DataDirect),
        (MELLANOX, 0xc2d3, 0x080100, Role::Management),
        (PENSANDO, 0x1004, 0x020000, Role::Management),
        (PENSANDO, 0x1002, 0x020000, Role::Hca),
        (0x144d, 0xa80a, 0x010802, Role::Nvme),
    ] {
        assert_eq!(of(vendor, device, class, port()), expected, "{vendor:04x}:{device:04x}");
    }
    assert_eq!(of(INTEL, 0x3e92, 0x030000, Below::Host(0)), Role::Other);
}

#[test]
fn names_alone() {
    for (name, expected) in [
        ("NVIDIA Corporation GV100GL [Tesla V100 SXM2 32GB]", Role::Gpu),
        ("NVIDIA Corporation GH100 [H100 SXM5 80GB]", Role::Gpu),
        ("NVIDIA Corporation Device 2f01", Role::Gpu),
        ("NVIDIA Corporation TU104 HD Audio Controller", Role::Other),
        ("NVIDIA Corporation GA100 [A100 NVSwitch]", Role::NvSwitch),
        ("Advanced Micro Devices, Inc. [AMD/ATI] Arcturus GL-XL [Instinct MI100]", Role::Gpu),
        ("Advanced Micro Devices, Inc. [AMD] Starship/Matisse GPP Bridge", Role::Other),
        ("Habana Labs Ltd. Gaudi2 AI Training Accelerator", Role::Gpu),
        ("Intel Corporation Ethernet Controller E810-C for QSFP", Role::Hca),
        (
            "Broadcom Inc. and subsidiaries BCM57508 NetXtreme-E 10Gb/25Gb/40Gb/50Gb/100Gb/200Gb \
             Ethernet",
            Role::Hca,
        ),
        ("AMD Pensando Systems DSC Ethernet Controller", Role::Hca),
        ("Mellanox Technologies MT28908 Family [ConnectX-6]", Role::Hca),
        (
            "Mellanox Technologies MT42822 BlueField-2 integrated ConnectX-6 Dx network controller",
            Role::Hca,
        ),
        ("Mellanox Technologies MT42822 BlueField-2 SoC Management Interface", Role::Management),
        ("Mellanox Technologies CX8 Family [CX8 Data Direct Interface]", Role::DataDirect),
        ("Intel Corporation PAC with Intel Arria 10 GX FPGA", Role::Fpga),
        ("Samsung Electronics Co Ltd NVMe SSD Controller PM9A1/PM9A3/980PRO", Role::Nvme),
        ("Intel Corporation C620 Series Chipset Family SMBus", Role::Other),
    ] {
        let function = Function::new("01:00.0".parse().unwrap(), Kind::Endpoint, port());
        let known = Function { product: Some(name.into()), ..function };
        assert_eq!(role(&known), expected, "{name}");
        // the same device where its name is on the list
        let by_id = Function { id: products::id_of(name), ..known };
        assert_eq!(role(&by_id), expected, "{name} by its id");
    }
}

#[test]
fn gigabit_adapters_are_nobodys_nearest() {
    let network = |at: &str, vendor, device| {
        let function = with_ids(vendor, device, 0x020000, Below::Host(0));
        Function { address: at.parse().unwrap(), role: Role::Hca, ..function }
    };
    let host = pcie::HostBridge {
        name: "h".into(),
        shown: pcie::Shown::Bridges,
        numa_node: None,
        root_device: None,
    };
    let names = |functions: Vec<Function>| -> Vec<String> {
        let machine = Machine::new(None, vec![host.clone()], functions).unwrap();
        adapters(&machine).iter().map(|f| f.address.to_string()).collect()
    };
    let i210 = network("01:00.0", INTEL, 0x1533);
    let tg3 = network("02:00.0", BROADCOM, 0x1657);
    let virtio = network("03:00.0", 0x1af4, 0x1041);
    assert!(names(vec![i210.clone(), tg3.clone(), virtio.clone()]).is_empty());
    let e810 = network("04:00.0", INTEL, 0x1592);
    let thor = network("05:00.0", BROADCOM, 0x1750);
    let pensando = network("06:00.0", PENSANDO, 0x1002);
    let all = vec![i210.clone(), tg3, virtio, e810, thor, pensando];
    assert_eq!(names(all), ["0000:04:00.0", "0000:05:00.0", "0000:06:00.0"]);
    // of whom the source says no more than that it is a network controller
    let some = Function { id: None, ..network("07:00.0", 0, 0) };
    assert_eq!(names(vec![i210, some]), ["0000:07:00.0"]);
}

#[test]
fn virtual_functions_belong_to_their_physical_one() {
    let at = |at: &str, device| Function {
        address: at.parse().unwrap(),
        ..with_ids(MELLANOX, device, 0x020000, Below::Host(0))
    };
    let mut functions = vec![
        at("01:00.0", 0x1013),
        at("01:00.1", 0x1014),
        at("01:00.2", 0x1014),
        at("02:00.0", 0x1014),
    ];
    assign(&mut functions);
    let owner = functions[0].address;
    let owners: Vec<_> = functions.iter().map(|f| f.virtual_of).collect();
    assert_eq!(owners, [None, Some(owner), Some(owner), None]);
}
