//! What the transport itself costs, in CPU time: two QPs wired directly in memory, no link and no
//! network. `cargo test --release -p transport --test transport -- --ignored --nocapture
//! throughput`

use crate::support::{Node, Setup, send_wr};
use std::result::Result;
use std::time::Instant;
use transport::values::*;
use transport::{Budget, Cx, Fill, Routing, Rx, Share, To, Tx};
use umem::AccessError;
use umem::Fold;
use wire::Headers;

/// Keeps packets without allocating for each, as a link's batch does.
#[derive(Default)]
struct Train {
    bytes: Vec<u8>,
    packets: Vec<(Headers, usize, usize)>,
}

impl Tx for Train {
    fn packet(
        &mut self,
        _to: To<'_>,
        headers: &Headers,
        len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<(), AccessError> {
        let at = self.packets.last().map_or(0, |(_, at, len)| at + len);
        if self.bytes.len() < at + len {
            self.bytes.resize(at + len, 0);
        }
        fill(&mut self.bytes[at..at + len], &mut Fold::off())?;
        self.packets.push((*headers, at, len));
        Ok(())
    }
}

fn call(
    node: &mut Node,
    train: &mut Train,
    f: impl FnOnce(&mut transport::Transport, &mut Cx<'_>),
) {
    let Node { qp, keys, queues, told, counts, .. } = node;
    let now = Instant::now();
    let budget = Budget::of(Share::new(512, u64::MAX));
    let xrc = queues;
    f(qp, &mut Cx { now, tx: train, keys, xrc, sink: told, counters: counts, budget });
}

fn deliver(node: &mut Node, train: &Train, answer: &mut Train) {
    let (src, dst) = (node.ip, node.ip);
    call(node, answer, |qp, cx| {
        for (headers, at, len) in &train.packets {
            let payload = &train.bytes[*at..at + len];
            qp.receive(
                &Rx {
                    headers,
                    payload,
                    in_transit: None,
                    src,
                    dst,
                    traffic_class: 0,
                    hop_limit: 64,
                    vlan: None,
                    routing: Routing::Ip,
                    mtu: None,
                },
                cx,
            );
        }
        qp.end_of_batch(cx);
        qp.transmit(cx);
    });
}

/// Time this thread has spent on a CPU: other programs on the machine do not count.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

fn measure(name: &str, mtu: u32, message: u32, total: u64, op: impl Fn(Remote) -> SendOp) {
    let mut nodes = [0u32, 1].map(|me| Node::with_window(QpType::Rc, me + 11, None, 1 << 20));
    for (me, node) in nodes.iter_mut().enumerate() {
        let psn = |of: usize| 1000 * (of as u32 + 1);
        let setup = Setup {
            mtu,
            dest: 12 - me as u32,
            sq_psn: psn(me),
            rq_psn: psn(1 - me),
            ..Setup::new(QpType::Rc)
        };
        node.connect(&setup);
    }
    let [mut a, mut b] = nodes;
    let (local, remote) = (a.register(message.into()), b.register(message.into()));
    let count = total / u64::from(message);
    let mut posted = 0;
    let (mut there, mut back) = (Train::default(), Train::default());
    let start = cpu_seconds();
    while (a.told.sent.len() as u64) < count {
        while posted < count && posted - (a.told.sent.len() as u64) < 64 {
            a.qp.post_send(send_wr(posted, op(remote.remote(0)), &[local.sge(0, message)]))
                .unwrap();
            posted += 1;
        }
        call(&mut a, &mut there, |qp, cx| qp.transmit(cx));
        deliver(&mut b, &there, &mut back);
        there.packets.clear();
        deliver(&mut a, &back, &mut there);
        back.packets.clear();
    }
    let seconds = cpu_seconds() - start;
    println!(
        "{name:6} mtu {:4} message {message:8}: {:6.2} GB/s, {:6.3} ns/B, {:6.0} ns/message",
        128 << mtu,
        total as f64 / seconds / 1e9,
        seconds * 1e9 / total as f64,
        seconds * 1e9 / count as f64
    );
}

#[test]
#[ignore = "a measurement, for release builds"]
fn throughput() {
    for (mtu, message) in [(5, 1 << 20), (3, 1 << 20), (5, 4096), (5, 8)] {
        let total = if message > 8 { 8 << 30 } else { 8 << 20 };
        measure("WRITE", mtu, message, total, SendOp::Write);
        measure("READ", mtu, message, total, SendOp::Read);
    }
}
