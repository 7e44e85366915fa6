use super::*;
use crate::values::{
    Completion, Payload, SendFlags, SendOp, SendWr, SgList, Sge, TmInfo, WcFlags, WcOpcode,
    WcStatus,
};
use mm::AtomicOp;
use std::sync::{Arc, Mutex};
use umem::{AccessError, DmaSpace};

/// Memory that a test can take away.
#[derive(Default)]
struct Bytes(Mutex<Option<Vec<u8>>>);

impl Bytes {
    fn of(len: u64) -> Arc<Bytes> {
        Arc::new(Bytes(Mutex::new(Some(vec![0; len as usize]))))
    }
    fn with<R>(&self, run: impl FnOnce(&mut Vec<u8>) -> R) -> Result<R, AccessError> {
        self.0.lock().unwrap().as_mut().map(run).ok_or(AccessError::Fault)
    }
}

impl DmaSpace for Bytes {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let at = addr as usize;
        self.with(|bytes| dst.copy_from_slice(&bytes[at..at + dst.len()]))
    }
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        let at = addr as usize;
        self.with(|bytes| bytes[at..at + src.len()].copy_from_slice(src))
    }
    fn atomic(&self, _: u64, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Unreachable)
    }
}

fn memory(bytes: &Arc<Bytes>, len: u64) -> QueueMemory {
    QueueMemory::new(bytes.clone(), 0, len)
}

fn receive(wr_id: u64, entries: usize) -> RecvWr {
    let sge = Sge { addr: 1 << 40 | wr_id, length: 7, lkey: 0xfff0_0001 };
    RecvWr { wr_id, scatter: (0..entries).map(|_| sge).collect() }
}

fn completion(wr_id: u64, qp_num: u32) -> Completion {
    Completion {
        wr_id,
        status: WcStatus::RemAccessErr,
        opcode: WcOpcode::RecvRdmaWithImm,
        vendor_err: 1,
        byte_len: 2,
        imm_or_key: 3,
        qp_num,
        src_qp: 5,
        src_ip: None,
        vlan: None,
        flags: WcFlags::GRH | WcFlags::WITH_IMM,
        sl: 6,
        timestamp_ns: 1 << 50,
        solicited: true,
        tm: TmInfo { tag: 1 << 63, app_ctx: 7 },
    }
}

#[test]
fn receives_wait_in_the_memory_and_come_back_in_order() {
    let len = QueueMemory::bytes_of_srq(3, 4);
    let bytes = Bytes::of(len);
    let mut queue = Fifo::of_receives(3, 4, Some(memory(&bytes, len))).unwrap();
    for round in 0..5 {
        for entries in [0, 1, 4] {
            queue.push_back(receive(10 * round + entries as u64, entries)).unwrap();
        }
        assert_eq!(queue.push_back(receive(9, 1)), Err(SlotLost), "there are three places");
        for entries in [0, 1, 4] {
            assert_eq!(queue.pop_front(), Some(Ok(receive(10 * round + entries as u64, entries))));
        }
        assert_eq!(queue.pop_front(), None);
    }
    queue.push_back(receive(0x0123_4567_89ab_cdef, 1)).unwrap();
    let id = 0x0123_4567_89ab_cdef_u64.to_ne_bytes();
    assert!(bytes.with(|all| all.windows(8).any(|window| window == id)).unwrap());
}

#[test]
fn what_was_overwritten_or_unmapped_is_lost() {
    let len = QueueMemory::bytes_of_srq(2, 1);
    let bytes = Bytes::of(len);
    let mut queue = Fifo::of_receives(2, 1, Some(memory(&bytes, len))).unwrap();
    queue.push_back(receive(1, 1)).unwrap();
    queue.push_back(receive(2, 1)).unwrap();
    bytes.with(|all| all[8..16].fill(0xff)).unwrap();
    assert_eq!(queue.pop_front(), Some(Err(SlotLost)), "an absurd number of entries");
    *bytes.0.lock().unwrap() = None;
    assert_eq!(queue.pop_front(), Some(Err(SlotLost)));
    assert_eq!(queue.push_back(receive(3, 1)), Err(SlotLost));
    assert_eq!(queue.pop_front(), None);
}

#[test]
fn completions_survive_the_way_there_and_back() {
    let len = QueueMemory::bytes_of_cq(3);
    let bytes = Bytes::of(len);
    let mut ring = Fifo::of_cq(3, Some(memory(&bytes, len))).unwrap();
    for wr_id in 0..4 {
        ring.push_back(completion(wr_id, wr_id as u32 % 2)).unwrap();
    }
    ring.retain(|completion| completion.qp_num == 1).unwrap();
    assert_eq!(ring.len(), 2);
    let larger = QueueMemory::bytes_of_cq(100);
    let moved = Bytes::of(larger);
    ring.move_to(Fifo::of_cq(100, Some(memory(&moved, larger))).unwrap()).unwrap();
    *bytes.0.lock().unwrap() = None;
    assert_eq!(ring.pop_front(), Some(Ok(completion(1, 1))));
    assert_eq!(ring.pop_front(), Some(Ok(completion(3, 1))));
    assert_eq!(ring.pop_front(), None);
    ring.push_back(completion(1, 1)).unwrap();
    moved.with(|all| all.fill(0xee)).unwrap();
    assert_eq!(ring.pop_front(), Some(Err(SlotLost)), "no such status");
}

#[test]
fn both_queues_of_a_qp_fit_its_memory_and_do_not_overlap() {
    let cap = QpCap {
        max_send_wr: 3,
        max_recv_wr: 2,
        max_send_sge: 5,
        max_recv_sge: 4,
        max_inline_data: 100,
    };
    let len = QueueMemory::bytes_of_qp(&cap);
    let bytes = Bytes::of(len);
    let (mut sends, mut receives) = split(memory(&bytes, len), &cap).unwrap();
    receives.push_back(receive(1, 4)).unwrap();
    receives.push_back(receive(2, 4)).unwrap();
    let list: SgList = receive(7, 5).scatter;
    let wr = |payload| SendWr {
        wr_id: 1,
        op: SendOp::Send,
        payload,
        flags: SendFlags::empty(),
        datagram: None,
        xrc_srqn: 0,
    };
    let data: Vec<u8> = (0..100).collect();
    let mut requests = [
        wr(Payload::Gather(list.clone())),
        wr(Payload::Inline(data.clone().into())),
        wr(Payload::Gather(list.clone())),
    ];
    let slots: Vec<_> = requests.iter_mut().map(|wr| sends.store(wr).unwrap()).collect();
    assert!(requests.iter().all(|wr| wr.payload == Payload::Gather(SgList::new())));
    assert_eq!(slots[0].gather().unwrap().unwrap()[..], list[..]);
    assert_eq!(slots[2].gather().unwrap().unwrap()[..], list[..]);
    assert_eq!(slots[1].gather(), None);
    let mut back = [0; 60];
    slots[1].inline(40, &mut back).unwrap();
    assert_eq!(back[..], data[40..]);
    assert_eq!(slots[1].inline(41, &mut back), Err(AccessError::OutOfRange));
    assert_eq!(receives.pop_front(), Some(Ok(receive(1, 4))));
    assert_eq!(receives.pop_front(), Some(Ok(receive(2, 4))));
    bytes.with(|all| all.truncate(0)).unwrap();
}
