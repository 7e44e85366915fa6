//! Captures of real machines that lie beside the project, not in it. Without them its tests are
//! skipped.

use pcie::{Label, Machine, labels};
use std::path::{Path, PathBuf};
use test_support::note_skip;
use topology::{Capture, accelerators, adapters, read};

fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/topologies");
    if !folder.is_dir() {
        note_skip(&format!("{} is not there", folder.display()));
        return None;
    }
    Some(folder)
}

fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, all);
        } else if path.extension().is_some_and(|end| end == "xml" || end == "bz2") {
            all.push(path);
        }
    }
}

#[test]
fn every_file_is_read() {
    let Some(folder) = folder() else { return };
    let mut all = Vec::new();
    files(&folder, &mut all);
    assert!(all.len() > 90, "only {} files", all.len());
    for path in all {
        match read(&path) {
            Ok(_) => {}
            Err(error) if path.ends_with("ncv4-graph.xml") => {
                assert!(error.to_string().contains("NCCL_TOPO_DUMP_FILE"), "{error}");
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

/// The labels of every GPU with every adapter, one row for each GPU.
fn matrix(machine: &Machine) -> Vec<Vec<Vec<Label>>> {
    let row = |gpu: &&pcie::Function| {
        adapters(machine).iter().map(|nic| labels(machine, gpu, nic).to_vec()).collect()
    };
    accelerators(machine).iter().map(row).collect()
}

fn capture(name: &str) -> Option<Capture> {
    Some(read(&folder()?.join(name)).unwrap())
}

/// Each GPU has the adapter of its own number at `near`, and none of the others that near.
fn paired(name: &str, near: Label) {
    let Some(capture) = capture(name) else { return };
    let matrix = matrix(&capture.machine);
    assert!(!matrix.is_empty(), "{name}");
    for (gpu, row) in matrix.iter().enumerate() {
        for (nic, labels) in row.iter().enumerate() {
            let is_near = labels[..] == [near];
            assert_eq!(is_near, gpu == nic, "{name}: GPU {gpu}, adapter {nic}: {labels:?}");
        }
    }
}

#[test]
fn a_switch_for_each_pair() {
    paired("nccl-xml/azure/ndv5-topo.xml", Label::Pix);
}

#[test]
fn a_switch_inside_the_gpu() {
    paired("nccl-xml/rccl/topo_8p_950.xml", Label::Pxb);
}

#[test]
fn two_gpus_and_two_adapters_below_each_switch() {
    let Some(capture) = capture("nccl-xml/oci/topo-flattened.xml") else { return };
    for (gpu, row) in matrix(&capture.machine).iter().enumerate() {
        for (nic, labels) in row.iter().enumerate() {
            let expected = if gpu / 2 == nic / 2 { Label::Pix } else { Label::Sys };
            assert_eq!(labels[..], [expected], "GPU {gpu}, adapter {nic}");
        }
    }
}

#[test]
fn sockets_of_power9_and_their_bridges() {
    let Some(capture) = capture("hwloc-xml/flux-core/sierra.xml") else { return };
    for (gpu, row) in matrix(&capture.machine).iter().enumerate() {
        for (nic, labels) in row.iter().enumerate() {
            let expected = if gpu / 2 == nic / 2 { Label::Node } else { Label::Sys };
            assert_eq!(labels[..], [expected], "GPU {gpu}, adapter {nic}");
        }
    }
}

#[test]
fn one_adapter_seen_from_eight_root_complexes() {
    let Some(capture) = capture("hwloc-xml/flux-core/corona.xml") else { return };
    use Label::*;
    let column: Vec<Label> = matrix(&capture.machine).iter().map(|row| row[0][0]).collect();
    assert_eq!(column, [Sys, Sys, Sys, Sys, Node, Node, Phb, Node]);
}

#[test]
fn what_a_file_does_not_show_stays_unknown() {
    let Some(capture) = capture("nccl-xml/rccl/topo_8p6l_6nic.xml") else { return };
    for row in matrix(&capture.machine) {
        for labels in row {
            assert!(labels == [Label::Sys] || labels == [Label::Phb, Label::Node], "{labels:?}");
        }
    }
    assert!(capture.machine.functions().all(|f| f.acs == pcie::Acs::Unknown));
}

#[test]
fn a_capture_taken_home_is_the_same_machine() {
    let Some(folder) = folder() else { return };
    for name in ["32em64t-2n8c+dax+nvme+mic+dimms", "32intel64-2p8co2t+8ve", "2pa-pcidomain32bits"]
    {
        let path = folder.join(format!("sysfs/{name}.tar.bz2"));
        let before = read(&path).unwrap();
        let home =
            std::env::temp_dir().join(format!("peerdma-{}-{name}.tar.gz", std::process::id()));
        topology::take_file(&path, std::fs::File::create(&home).unwrap()).unwrap();
        let after = read(&home).unwrap();
        std::fs::remove_file(&home).unwrap();
        assert_eq!(before.machine, after.machine, "{name}");
    }
}
