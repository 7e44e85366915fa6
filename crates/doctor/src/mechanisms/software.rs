//! The software HCA, which needs Linux and a free port.

use crate::conditions::{release, setting};
use crate::{Condition, ConditionState, Facts};

pub(super) fn software_hca(facts: &Facts) -> Vec<Condition> {
    let rxe = match (facts.module("rdma_rxe"), facts.rdma_core) {
        (Some(true), _) => (ConditionState::Unknown, "rdma_rxe is loaded"),
        (Some(false), _) => (ConditionState::Holds, "rdma_rxe is not loaded"),
        // A kernel without modules, as small virtual machines have, lists none.
        (None, Some(false)) => {
            (ConditionState::Holds, "the kernel has no RDMA core (/sys/class/infiniband)")
        }
        (None, _) => (ConditionState::Unknown, "/proc/modules could not be read"),
    };
    let architecture = facts.architecture.as_deref();
    let mut conditions = vec![
        Condition::new(
            "Linux on x86-64 or 64-bit ARM",
            ConditionState::of(architecture.map(|name| matches!(name, "x86_64" | "aarch64"))),
            format!("{}, {}", release(facts), architecture.unwrap_or("architecture unknown")),
            "it is built for x86-64, where it is tested, and for 64-bit ARM",
        ),
        Condition::new(
            "UDP port 4791 is free",
            rxe.0,
            rxe.1,
            "if an rxe link exists in this network namespace, delete it (rdma link delete) or take \
             a namespace of your own (unshare -rn)",
        ),
    ];
    conditions.extend(facts.kernel_watches.as_ref().map(|watches| {
        let evidence = match watches {
            Ok(()) => "the kernel (userfaultfd), and interposed calls before it".to_owned(),
            Err(why) => format!(
                "interposed calls alone: userfaultfd: {why}; bare system calls go unseen, so \
                 deregister before you unmap"
            ),
        };
        Condition::new(
            "somebody tells when registered memory goes",
            ConditionState::Holds,
            evidence,
            "",
        )
    }));
    conditions.extend(host_buffers(facts));
    let proof = "two programs exchange GPU memory over it";
    match &facts.software_hca {
        None => {}
        Some(Ok(())) => {
            // What was proven is not in doubt.
            for condition in &mut conditions {
                condition.state = ConditionState::Holds;
                condition.remedy.clear();
            }
            let evidence = "`peerdma demo --size 256K` proved it";
            conditions.push(Condition::new(proof, ConditionState::Holds, evidence, ""));
        }
        Some(Err(why)) => {
            let remedy = "`peerdma demo` says more";
            conditions.push(Condition::new(proof, ConditionState::Fails, why.clone(), remedy));
        }
    }
    conditions
}

/// What makes dma-bufs of host memory, for programs and tests that want real ones where no GPU is.
fn host_buffers(facts: &Facts) -> Option<Condition> {
    let makers = [("/dev/udmabuf", "UDMABUF"), ("/dev/dma_heap/", "DMABUF_HEAPS")];
    let mut told = Vec::new();
    for (path, config) in makers {
        let nodes = facts.nodes.iter().filter(|(node, _)| node.starts_with(path));
        told.extend(nodes.map(|(node, result)| match result {
            Ok(()) => format!("{node} may be opened"),
            Err(why) => format!("{node}: {why}"),
        }));
        told.extend(setting(facts, config));
    }
    let what = "dma-bufs of host memory, for programs that ask for them (udmabuf, dma-heap)";
    (!told.is_empty()).then(|| Condition::new(what, ConditionState::Holds, told.join(", "), ""))
}
