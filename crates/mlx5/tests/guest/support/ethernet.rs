//! Objects of an Ethernet port, as a driver of network interfaces makes them, and queue pairs that
//! meet there.

use super::verbs::{self, Cq, Qp, cq, data, eq, physical_key};
use super::{Driver, field};
use hca::Network;
use registry::Options;

pub fn on_ethernet(name: &str, options: &Options) -> Driver {
    Driver::on_network(name, options, Network::Ethernet { host_addresses: Vec::new() })
}

pub fn mac(driver: &mut Driver) -> [u8; 6] {
    let context = driver.command(0x754, vec![0; 16], 16 + 264);
    context[16 + 0xf6..16 + 0xfc].try_into().unwrap()
}

/// A work queue of the Ethernet and where the driver is in it.
pub struct Queue {
    pub number: u32,
    page: u64,
    pub record: u64,
    posted: u16,
}

pub const CREATE_TIR: u16 = 0x900;
pub const CREATE_FLOW_TABLE: u16 = 0x930;
pub const CREATE_FLOW_GROUP: u16 = 0x933;
pub const SET_FLOW_TABLE_ENTRY: u16 = 0x936;
/// Entries of a queue, as a logarithm.
pub const LOG_SIZE: u64 = 4;
const STRIDE: u64 = 64;

/// Made by `create`, and brought to the ready state by `modify`.
pub fn queue(driver: &mut Driver, create: u16, modify: u16, pd: u32, cq: &Cq) -> Queue {
    queue_with(driver, create, modify, pd, cq, &[])
}

/// With more fields of the command that makes it: place, width, value.
pub fn queue_with(
    driver: &mut Driver,
    create: u16,
    modify: u16,
    pd: u32,
    cq: &Cq,
    more: &[(usize, usize, u64)],
) -> Queue {
    let (page, record) = (driver.page(), driver.page());
    let mut input = ring(driver, pd, cq, page, record);
    more.iter().for_each(|(bit, width, value)| field(&mut input, *bit, *width, *value));
    let number = driver.create(create, input);
    let mut input = vec![0; 0x110];
    field(&mut input, 0x48, 24, number.into());
    field(&mut input, 0x108, 4, 1);
    driver.command(modify, input, 16);
    Queue { number, page, record, posted: 0 }
}

/// The command that makes a queue in one page, with its doorbell record elsewhere.
pub fn ring(driver: &Driver, pd: u32, cq: &Cq, page: u64, record: u64) -> Vec<u8> {
    let mut input = vec![0; 0x110 + 8];
    let wq = 0x100 + 0x180;
    field(&mut input, 0x100 + 0x48, 24, cq.number.into());
    field(&mut input, wq, 4, 1);
    field(&mut input, wq + 0x48, 24, pd.into());
    field(&mut input, wq + 0x68, 24, driver.uar.into());
    field(&mut input, wq + 0x80, 64, record);
    field(&mut input, wq + 0x10c, 4, 6);
    field(&mut input, wq + 0x11b, 5, LOG_SIZE);
    field(&mut input, 0x880, 64, page);
    input
}

impl Queue {
    fn place(&self) -> u64 {
        self.page + u64::from(self.posted % (1 << LOG_SIZE)) * STRIDE
    }

    pub fn post_receive(&mut self, driver: &Driver, key: u32, addr: u64, len: u32) {
        driver.poke(self.place(), &[data(key, addr, len), data(0x100, 0, 0)].concat());
        self.posted += 1;
        driver.poke(self.record, &u32::from(self.posted).to_be_bytes());
    }

    /// Posts a frame: `headers` in the request, the rest as data segments.
    pub fn post(&mut self, driver: &Driver, opcode: u8, mss: u16, headers: &[u8], segments: &[u8]) {
        for block in self.request(opcode, mss, headers, segments).chunks(64) {
            driver.poke(self.place(), block);
            self.posted += 1;
        }
        driver.poke(self.record + 4, &u32::from(self.posted).to_be_bytes());
        driver.ring(self.number);
    }

    /// What stands in the ring then.
    pub fn request(&self, opcode: u8, mss: u16, headers: &[u8], segments: &[u8]) -> Vec<u8> {
        let mut entry = vec![0; 30];
        entry[11] = 2 << 2;
        entry[20] = 0xc0;
        entry[22..24].copy_from_slice(&mss.to_be_bytes());
        entry[28..30].copy_from_slice(&(headers.len() as u16).to_be_bytes());
        entry.extend(headers);
        entry.resize(entry.len().max(32).next_multiple_of(16), 0);
        entry.extend(segments);
        let first = u32::from(self.posted) << 8 | u32::from(opcode);
        entry[..4].copy_from_slice(&first.to_be_bytes());
        let units = self.number << 8 | (entry.len() / 16) as u32;
        entry[4..8].copy_from_slice(&units.to_be_bytes());
        entry
    }
}

/// Steers every frame to the queue.
pub fn steer(driver: &mut Driver, queue: u32) {
    steer_with(driver, queue, 0, 0);
}

/// By way of an interface of a transport domain, and with a tag.
pub fn steer_with(driver: &mut Driver, queue: u32, domain: u64, tag: u64) {
    let tir = driver.create(CREATE_TIR, interface(queue, domain));
    let table = driver.create(CREATE_FLOW_TABLE, vec![0; 64]);
    let group = driver.create(CREATE_FLOW_GROUP, flow_group(table, 0));
    let mut entry = flow_entry(table, group, 0, tir);
    field(&mut entry, 0x248, 24, tag);
    driver.command(SET_FLOW_TABLE_ENTRY, entry, 16);
    let mut input = vec![0; 64];
    field(&mut input, 0xa8, 24, table.into());
    driver.command(0x92f, input, 16);
}

/// The command that makes an interface from which frames go to `queue`.
pub fn interface(queue: u32, domain: u64) -> Vec<u8> {
    let mut input = vec![0; 0x110];
    field(&mut input, 0x100 + 0xe8, 24, queue.into());
    field(&mut input, 0x100 + 0x128, 24, domain);
    input
}

/// The command that makes a group of every frame, for the entry at `index`.
pub fn flow_group(table: u32, index: u32) -> Vec<u8> {
    let mut input = vec![0; 1024];
    field(&mut input, 0xa8, 24, table.into());
    field(&mut input, 0xe0, 32, index.into());
    field(&mut input, 0x120, 32, index.into());
    input
}

/// The command that makes an entry of a group: its frames go to the interface `tir`.
pub fn flow_entry(table: u32, group: u32, index: u32, tir: u32) -> Vec<u8> {
    let mut input = vec![0; 0x340 + 8];
    field(&mut input, 0xa8, 24, table.into());
    field(&mut input, 0x100, 32, index.into());
    field(&mut input, 0x220, 32, group.into());
    field(&mut input, 0x270, 16, 4);
    field(&mut input, 0x288, 24, 1);
    field(&mut input, 0x1a00, 8, 2);
    field(&mut input, 0x1a08, 24, tir.into());
    input
}

/// A port and what its driver has made so far; the key is over all memory.
pub struct End {
    pub driver: Driver,
    pub cq: Cq,
    pub pd: u32,
    pub key: u32,
    pub mac: [u8; 6],
}

pub fn end(name: &str, options: &Options) -> End {
    let mut driver = on_ethernet(name, options);
    let (eqn, _) = eq(&mut driver, 0);
    let cq = cq(&mut driver, eqn);
    let pd = driver.create(verbs::ALLOC_PD, vec![0; 16]);
    let key = physical_key(&mut driver, pd);
    let mac = mac(&mut driver);
    End { driver, cq, pd, key, mac }
}

/// Headers of Ethernet, IPv4 and TCP.
pub fn headers(dst: [u8; 6], src: [u8; 6]) -> Vec<u8> {
    let mut frame =
        [&dst[..], &src, &[0x08, 0, 0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0]].concat();
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0]);
    frame.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame
}

/// `SET_ROCE_ADDRESS`, with what stands before the hardware address: whether there is a VLAN, and
/// which.
pub fn roce_address(index: u8, gid: [u8; 16], mac: [u8; 6], vlan: u16) -> Vec<u8> {
    let mut input = vec![0; 48];
    input[9] = index;
    input[16..32].copy_from_slice(&gid);
    input[32..34].copy_from_slice(&vlan.to_be_bytes());
    input[34..40].copy_from_slice(&mac);
    field(&mut input, 0x80 + 0xd8, 8, 2);
    input
}

pub const IN_A_VLAN: u16 = 1 << 12;

pub fn set_gid(driver: &mut Driver, gid: [u8; 16], mac: [u8; 6]) {
    driver.command(0x761, roce_address(0, gid, mac, 0), 16);
}

/// An address of IPv4 as a GID.
pub fn gid(low: u8) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, 9, 8, low]);
    gid
}

/// RESET to RTS of a reliable connection.
pub fn connect(end: &mut End, qp: &Qp, peer: u32, gid: [u8; 16], mac: [u8; 6]) {
    let path = 0xc0;
    let mut fields = vec![(path + 0x58, 8, 64), (path + 0x110, 16, 0xc077)];
    fields.extend((0..16).map(|byte| (path + 0x80 + byte * 8, 8, gid[byte].into())));
    fields.extend((0..6).map(|byte| (path + 0x130 + byte * 8, 8, mac[byte].into())));
    qp.connect_by(&mut end.driver, &fields, peer);
}
