//! What RDMA_NL_NLDEV's commands are answered with (`rdma/rdma_netlink.h`, kernel `nldev.c`):
//! devices, ports, what programs have made, counters.
//!
//! Whatever changes something, and whatever other processes do not publish, is EOPNOTSUPP with the
//! reason beside it.

use super::message::{DONE, ERROR, FIRST_KIND, Message, Request, flags};
use super::world::{Device, User, World};
use hca::QpState;

/// `RDMA_NL_NLDEV`.
const NLDEV: u16 = 5;
/// Most bytes of entries in one message: libmnl reads into 8 KiB, a page where pages are smaller.
const TABLE_BYTES: usize = 3 << 10;

/// `enum rdma_nldev_command`.
mod command {
    pub const GET: u16 = 1;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const RES_GET: u16 = 9;
    pub const RES_QP_GET: u16 = 10;
    pub const RES_MR_GET: u16 = 13;
    pub const RES_PD_GET: u16 = 14;
    pub const GET_CHARDEV: u16 = 15;
    pub const STAT_GET: u16 = 17;
    pub const LAST: u16 = 24;
}

/// `enum rdma_nldev_attr`.
mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const CAP_FLAGS: u16 = 4;
    pub const FW_VERSION: u16 = 5;
    pub const NODE_GUID: u16 = 6;
    pub const SYS_IMAGE_GUID: u16 = 7;
    pub const PORT_STATE: u16 = 12;
    pub const PORT_PHYS_STATE: u16 = 13;
    pub const DEV_NODE_TYPE: u16 = 14;
    pub const RES_SUMMARY: u16 = 15;
    pub const RES_SUMMARY_ENTRY: u16 = 16;
    pub const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub const RES_QP: u16 = 19;
    pub const RES_QP_ENTRY: u16 = 20;
    pub const RES_LQPN: u16 = 21;
    pub const RES_RQPN: u16 = 22;
    pub const RES_SQ_PSN: u16 = 24;
    pub const RES_TYPE: u16 = 26;
    pub const RES_STATE: u16 = 27;
    pub const RES_PID: u16 = 28;
    pub const RES_USECNT: u16 = 38;
    pub const RES_MR: u16 = 40;
    pub const RES_MR_ENTRY: u16 = 41;
    pub const RES_IOVA: u16 = 44;
    pub const RES_MRLEN: u16 = 45;
    pub const RES_PD: u16 = 46;
    pub const RES_PD_ENTRY: u16 = 47;
    pub const NDEV_INDEX: u16 = 50;
    pub const NDEV_NAME: u16 = 51;
    /// What a driver adds: names, each with its value.
    pub const DRIVER: u16 = 52;
    pub const DRIVER_STRING: u16 = 54;
    pub const DRIVER_U64: u16 = 59;
    pub const RES_PDN: u16 = 60;
    pub const RES_MRN: u16 = 62;
    pub const NETNS_MODE: u16 = 66;
    pub const DEV_PROTOCOL: u16 = 67;
    pub const STAT_RES: u16 = 75;
    pub const STAT_HWCOUNTERS: u16 = 80;
    pub const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
}

/// Ports count from 1.
const FIRST_PORT: u32 = 1;
/// `RDMA_NODE_IB_CA`.
const NODE_CA: u8 = 1;
/// `NLMSGERR_ATTR_MSG`.
const ERROR_TEXT: u16 = 1;

/// Why a request is refused: an errno, and words for the program to show.
type Refusal = (i32, &'static str);

const NO_DEVICE: Refusal = (libc::EINVAL, "there is no RDMA device of this index");
const NO_PORT: Refusal = (libc::EINVAL, "the device has no port of this number");

/// The datagrams that answer what was sent from `port`, in their order.
pub fn answers(mut bytes: &[u8], port: u32, world: &dyn World) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    while let Some(request) = Request::take(&mut bytes) {
        // As the kernel skips them.
        if request.flags & flags::REQUEST == 0 || request.kind < FIRST_KIND {
            continue;
        }
        let dumps = request.flags & flags::DUMP == flags::DUMP;
        let mut reply = Reply { request, port, dumps, made: Vec::new() };
        let done = reply.run(world);
        answers.append(&mut reply.made);
        match done {
            Ok(()) if dumps => answers.push(reply.done()),
            Ok(()) if request.flags & flags::ACK == 0 => {}
            Ok(()) => answers.push(reply.error(None)),
            Err(refusal) => answers.push(reply.error(Some(refusal))),
        }
    }
    answers
}

/// One request and what it is answered with so far.
struct Reply<'a> {
    request: Request<'a>,
    port: u32,
    dumps: bool,
    made: Vec<Vec<u8>>,
}

impl Reply<'_> {
    fn run(&mut self, world: &dyn World) -> Result<(), Refusal> {
        let (client, command) = (self.request.kind >> 10, self.request.kind & 0x3ff);
        if client != NLDEV || command == 0 || command > command::LAST {
            return Err((libc::EINVAL, "no such request of RDMA devices"));
        }
        match command {
            command::GET if self.dumps => world.devices().iter().for_each(|one| self.device(one)),
            command::GET => self.device(&self.named(world)?),
            command::PORT_GET => self.ports(&self.named(world)?)?,
            command::SYS_GET => self.system(),
            command::RES_GET if self.dumps => {
                world.devices().iter().for_each(|one| self.summary(one, &world.users(one)));
            }
            command::RES_GET => {
                let device = self.named(world)?;
                self.summary(&device, &world.users(&device));
            }
            command::RES_QP_GET | command::RES_MR_GET | command::RES_PD_GET if self.dumps => {
                let device = self.named(world)?;
                self.resources(command, &device, &world.users(&device))?;
            }
            command::STAT_GET if self.request.u32(attr::STAT_RES).is_none() => {
                let device = self.named(world)?;
                self.counters(&device, &world.users(&device))?;
            }
            command::STAT_GET => {
                return Err((libc::EOPNOTSUPP, "no counters are bound to queue pairs or regions"));
            }
            // As for a module that is not loaded: librdmacm then looks in sysfs.
            command::GET_CHARDEV => return Err((libc::ENODEV, "look in /sys/class")),
            _ => return Err((libc::EOPNOTSUPP, "a software device does not do or tell this")),
        }
        Ok(())
    }

    /// The device that the request names.
    fn named(&self, world: &dyn World) -> Result<Device, Refusal> {
        let index = self.request.u32(attr::DEV_INDEX).ok_or(NO_DEVICE)?;
        world.devices().into_iter().find(|device| device.index == index).ok_or(NO_DEVICE)
    }

    /// The port that the request names, if it names one.
    fn port_of(&self, device: &Device) -> Result<Option<u32>, Refusal> {
        match self.request.u32(attr::PORT_INDEX) {
            Some(port) if port == 0 || port > device.ports => Err(NO_PORT),
            port => Ok(port),
        }
    }

    /// Files a message that begins with the device.
    fn say(&mut self, device: Option<&Device>, body: impl FnOnce(&mut Message)) {
        let flags = if self.dumps { flags::MULTI } else { 0 };
        let kind = self.request.kind;
        let mut message = Message::answering(&self.request, self.port, kind, flags);
        if let Some(device) = device {
            message.u32(attr::DEV_INDEX, device.index);
            message.text(attr::DEV_NAME, &device.name);
        }
        body(&mut message);
        self.made.push(message.finish());
    }

    fn device(&mut self, device: &Device) {
        self.say(Some(device), |message| {
            message.u32(attr::PORT_INDEX, device.ports);
            message.text(attr::FW_VERSION, &device.fw_ver);
            message.u64(attr::NODE_GUID, device.node_guid);
            message.u64(attr::SYS_IMAGE_GUID, device.sys_image_guid);
            message.u8(attr::DEV_NODE_TYPE, NODE_CA);
            message.text(attr::DEV_PROTOCOL, "roce");
        });
    }

    fn ports(&mut self, device: &Device) -> Result<(), Refusal> {
        let ports = match (self.dumps, self.port_of(device)?) {
            (true, _) => 1..=device.ports,
            (false, Some(port)) => port..=port,
            (false, None) => return Err(NO_PORT),
        };
        for number in ports {
            self.say(Some(device), |message| {
                let port = &device.port;
                message.u32(attr::PORT_INDEX, number);
                message.u64(attr::CAP_FLAGS, port.cap_mask.into());
                message.u8(attr::PORT_STATE, port.state);
                message.u8(attr::PORT_PHYS_STATE, port.phys_state);
                if let Some((name, index)) = &port.netdev {
                    message.u32(attr::NDEV_INDEX, *index);
                    message.text(attr::NDEV_NAME, name);
                }
            });
        }
        Ok(())
    }

    /// Devices belong to their network namespace.
    fn system(&mut self) {
        self.say(None, |message| message.u8(attr::NETNS_MODE, 0));
    }

    fn summary(&mut self, device: &Device, users: &[User]) {
        let total = |of: fn(&User) -> usize| users.iter().map(of).sum::<usize>() as u64;
        let rows = [
            ("pd", total(|user| user.pds().len())),
            ("qp", total(|user| user.qps.len())),
            ("mr", total(|user| user.keys.len())),
            ("ctx", users.len() as u64),
        ];
        self.say(Some(device), |message| {
            message.nest(attr::RES_SUMMARY, |table| {
                for (name, count) in rows {
                    table.nest(attr::RES_SUMMARY_ENTRY, |row| {
                        row.text(attr::RES_SUMMARY_ENTRY_NAME, name);
                        row.u64(attr::RES_SUMMARY_ENTRY_CURR, count);
                    });
                }
            });
        });
    }

    fn resources(&mut self, command: u16, device: &Device, users: &[User]) -> Result<(), Refusal> {
        let port = self.port_of(device)?;
        let mut rows = Vec::new();
        for user in users {
            match command {
                command::RES_QP_GET => rows.extend(user.qps.iter().filter_map(|qp| {
                    // Its process does not publish its port either; in RESET it has none.
                    let own = (qp.state != QpState::Reset as u32).then_some(FIRST_PORT);
                    if port.is_some() && port != own {
                        return None;
                    }
                    let mut row = row(user);
                    if let Some(own) = own {
                        row.u32(attr::PORT_INDEX, own);
                    }
                    row.u32(attr::RES_LQPN, qp.number);
                    if qp.dest_qpn != 0 {
                        row.u32(attr::RES_RQPN, qp.dest_qpn);
                    }
                    // Nor that, and `rdma` shows no queue pair without one.
                    row.u32(attr::RES_SQ_PSN, 0);
                    row.u8(attr::RES_TYPE, qp.qp_type as u8);
                    row.u8(attr::RES_STATE, qp.state as u8);
                    row.u32(attr::RES_PDN, qp.pd);
                    Some(row)
                })),
                command::RES_MR_GET => rows.extend(user.keys.iter().map(|key| {
                    let mut row = row(user);
                    row.u32(attr::RES_MRN, key.key >> 8);
                    row.u64(attr::RES_IOVA, key.iova);
                    row.u64(attr::RES_MRLEN, key.len);
                    row.u32(attr::RES_PDN, key.pd);
                    if let Some(page_size) = key.page_size {
                        row.nest(attr::DRIVER, |driver| {
                            driver.text(attr::DRIVER_STRING, "page_size");
                            driver.u64(attr::DRIVER_U64, page_size);
                        });
                    }
                    row
                })),
                _ => rows.extend(user.pds().into_iter().map(|(pd, used)| {
                    let mut row = row(user);
                    row.u32(attr::RES_PDN, pd);
                    row.u64(attr::RES_USECNT, used);
                    row
                })),
            }
        }
        let (table, entry) = match command {
            command::RES_QP_GET => (attr::RES_QP, attr::RES_QP_ENTRY),
            command::RES_MR_GET => (attr::RES_MR, attr::RES_MR_ENTRY),
            _ => (attr::RES_PD, attr::RES_PD_ENTRY),
        };
        self.table(device, (table, entry), &rows);
        Ok(())
    }

    /// Files rows in as many messages as they need.
    fn table(&mut self, device: &Device, (table, entry): (u16, u16), mut rows: &[Message]) {
        while !rows.is_empty() {
            let mut bytes = 0;
            let fits = rows.iter().take_while(|row| {
                bytes += row.as_bytes().len();
                bytes <= TABLE_BYTES
            });
            let (now, later) = rows.split_at(fits.count().max(1));
            self.say(Some(device), |message| {
                message.nest(table, |table| {
                    now.iter().for_each(|row| table.put(entry, row.as_bytes()))
                });
            });
            rows = later;
        }
    }

    /// The device's counters; they are not kept by port, so each shows them.
    fn counters(&mut self, device: &Device, users: &[User]) -> Result<(), Refusal> {
        let port = self.port_of(device)?.ok_or(NO_PORT)?;
        self.say(Some(device), |message| {
            message.u32(attr::PORT_INDEX, port);
            message.nest(attr::STAT_HWCOUNTERS, |table| {
                for (at, name) in hca::Counter::ALL.iter().map(|counter| counter.name()).enumerate()
                {
                    let of = |user: &User| user.counters.get(at).copied().unwrap_or(0);
                    let sum = users.iter().map(of).fold(0u64, u64::wrapping_add);
                    table.nest(attr::STAT_HWCOUNTER_ENTRY, |row| {
                        row.text(attr::STAT_HWCOUNTER_ENTRY_NAME, name);
                        row.u64(attr::STAT_HWCOUNTER_ENTRY_VALUE, sum);
                    });
                }
            });
        });
        Ok(())
    }

    fn done(&self) -> Vec<u8> {
        let mut message = Message::answering(&self.request, self.port, DONE, flags::MULTI);
        message.raw(&0i32.to_ne_bytes());
        message.finish()
    }

    /// An acknowledgement, or the refusal and its words.
    fn error(&self, refusal: Option<Refusal>) -> Vec<u8> {
        let words = if refusal.is_some() { flags::ACK_TLVS } else { 0 };
        let flags = flags::CAPPED | words;
        let mut message = Message::answering(&self.request, self.port, ERROR, flags);
        message.raw(&refusal.map_or(0, |(errno, _)| -errno).to_ne_bytes());
        message.raw(self.request.header);
        if let Some((_, words)) = refusal {
            message.text(ERROR_TEXT, words);
        }
        message.finish()
    }
}

/// The attributes of one object, the first of which is whose it is.
fn row(user: &User) -> Message {
    let mut row = Message::part();
    row.u32(attr::RES_PID, user.pid);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nldev::world::Port;
    use hca::directory::{KeyEntry, QpEntry};

    struct Two;

    impl World for Two {
        fn devices(&self) -> Vec<Device> {
            let port =
                Port { cap_mask: 1, state: 4, phys_state: 5, netdev: Some(("eth0".to_owned(), 2)) };
            let device = |index: u32| Device {
                index,
                name: format!("peerdma{index}"),
                fw_ver: "1.0".to_owned(),
                node_guid: 0x0123_4567_89ab_cdef,
                sys_image_guid: 7,
                ports: 2,
                port: port.clone(),
            };
            vec![device(0), device(1)]
        }

        fn users(&self, device: &Device) -> Vec<User> {
            let qp = |number| QpEntry {
                number,
                qp_type: 2,
                state: 3,
                pd: 5,
                dest_qpn: 9,
                tx_bytes: 0,
                rx_bytes: 0,
                goes_directly: false,
            };
            let key = KeyEntry {
                key: 0x12_3400,
                pd: 6,
                access: 0,
                iova: 0x1000,
                len: 64,
                page_size: None,
            };
            let user = User {
                pid: 42,
                qps: (1..=1000).map(qp).collect(),
                keys: vec![key],
                counters: vec![3; hca::Counter::ALL.len()],
            };
            if device.index == 0 { vec![user.clone(), user] } else { Vec::new() }
        }
    }

    fn ask(command: u16, flags: u16, attributes: &[(u16, u32)]) -> Vec<Vec<u8>> {
        let mut head = [0u8; 16];
        head[0] = 16;
        let first = Request::take(&mut &head[..]).unwrap();
        let kind = NLDEV << 10 | command;
        let mut message = Message::answering(&first, 0, kind, flags | flags::REQUEST);
        attributes.iter().for_each(|&(kind, value)| message.u32(kind, value));
        answers(&message.finish(), 77, &Two)
    }

    fn kinds(answers: &[Vec<u8>]) -> Vec<u16> {
        answers.iter().map(|bytes| Request::take(&mut bytes.as_slice()).unwrap().kind).collect()
    }

    fn errno(answers: &[Vec<u8>]) -> i32 {
        let last = answers.last().unwrap();
        -i32::from_ne_bytes(last[16..20].try_into().unwrap())
    }

    #[test]
    fn one_device_is_told_and_acknowledged_if_that_is_wanted() {
        let kind = NLDEV << 10 | command::GET;
        let told = ask(command::GET, flags::ACK, &[(attr::DEV_INDEX, 1)]);
        assert_eq!((kinds(&told), errno(&told)), (vec![kind, ERROR], 0));
        let first = Request::take(&mut told[0].as_slice()).unwrap();
        assert_eq!((first.u32(attr::DEV_INDEX), first.u32(attr::PORT_INDEX)), (Some(1), Some(2)));
        assert_eq!(kinds(&ask(command::GET, 0, &[(attr::DEV_INDEX, 1)])), [kind]);
    }

    #[test]
    fn all_devices_end_with_a_datagram_of_its_own() {
        let kind = NLDEV << 10 | command::GET;
        let told = ask(command::GET, flags::DUMP | flags::ACK, &[]);
        assert_eq!(kinds(&told), [kind, kind, DONE]);
    }

    #[test]
    fn tables_are_cut_to_what_libmnl_reads_at_once() {
        let told = ask(command::RES_QP_GET, flags::DUMP, &[(attr::DEV_INDEX, 0)]);
        assert!(told.len() > 20 && told.iter().all(|bytes| bytes.len() <= 4096));
        let bytes: usize = told.iter().map(Vec::len).sum();
        assert!(bytes > 2000 * 50, "all 2000 are there");
        let none = ask(command::RES_QP_GET, flags::DUMP, &[(attr::DEV_INDEX, 1)]);
        assert_eq!(kinds(&none), [DONE]);
    }

    #[test]
    fn what_is_not_there_or_not_told_is_refused_by_the_kernels_errno() {
        let index = |value| [(attr::DEV_INDEX, value)];
        let cases: [(i32, u16, &[_]); 8] = [
            (libc::EINVAL, command::GET, &[]),
            (libc::EINVAL, command::GET, &index(2)),
            (libc::EINVAL, command::PORT_GET, &index(0)),
            (libc::EINVAL, command::PORT_GET, &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 3)]),
            (libc::EINVAL, command::LAST + 1, &index(0)),
            (libc::EOPNOTSUPP, 2, &index(0)),
            (libc::EOPNOTSUPP, command::RES_QP_GET, &index(0)),
            (libc::ENODEV, command::GET_CHARDEV, &[]),
        ];
        for (wanted, command, attributes) in cases {
            let told = ask(command, 0, attributes);
            assert_eq!((kinds(&told), errno(&told)), (vec![ERROR], wanted), "command {command}");
        }
    }

    #[test]
    fn counters_are_the_sums_of_all_processes() {
        let told = ask(command::STAT_GET, 0, &[(attr::DEV_INDEX, 0), (attr::PORT_INDEX, 1)]);
        let six = 6u64.to_ne_bytes();
        let found = told[0].windows(8).filter(|window| **window == six).count();
        assert!(found >= hca::Counter::ALL.len());
    }
}
