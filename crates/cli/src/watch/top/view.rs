//! The rates as a person reads them, and as JSON.

use super::rates::{DeviceRates, LinkRate, QpRates, RouteRates};
use super::sample::Sample;
use crate::console::style;
use crate::watch::observer::{NOBODY, Unread};
use pcie::MapType;
use serde_json::{Value, json};
use std::time::UNIX_EPOCH;

/// Back to the first place of the screen, and all below it cleared: a terminal shows one picture
/// that changes.
const REDRAW: &str = "\x1b[H\x1b[2J";
/// Rows that headings and devices need beside the queue pairs.
const OTHER_ROWS: usize = 4;
/// Queue pairs to show where there is no terminal with a height.
const MOST_QPS: usize = 16;

/// Prints the tables; on a terminal in the place of the last ones.
pub fn show(devices: &[DeviceRates<'_>], unread: &[Unread]) {
    if style::width().is_some() {
        style::outln(format_args!("{REDRAW}"));
    }
    Unread::tell(unread);
    if devices.is_empty() && unread.is_empty() {
        return style::outln(format_args!("{NOBODY}"));
    }
    let tables = [device_table(devices), route_table(devices), link_table(devices)];
    let used: usize = tables.iter().map(|table| table.len() + 1).sum();
    let used = used + unread.len();
    for table in tables {
        print(&table);
    }
    let rows = style::height().map_or(MOST_QPS, |height| height.saturating_sub(used + OTHER_ROWS));
    print(&qp_table(devices, rows));
}

/// Prints a table and an empty line; one of nothing but a heading not at all.
fn print(rows: &[Vec<String>]) {
    if rows.len() < 2 {
        return;
    }
    let text = |column: usize| rows[0].get(column).is_some_and(|head| !head.ends_with("/s"));
    let right: Vec<usize> = (0..rows[0].len()).filter(|&column| !text(column)).collect();
    style::show(style::cut(style::table(rows, &right)), 1);
    style::outln(format_args!(""));
}

fn row<const N: usize>(cells: [String; N]) -> Vec<String> {
    cells.into()
}

fn bytes(rate: f64) -> String {
    style::bytes(rate as u64)
}

fn count(rate: f64) -> String {
    format!("{rate:.0}")
}

fn device_table(devices: &[DeviceRates<'_>]) -> Vec<Vec<String>> {
    let head = ["DEVICE", "PID", "SENT/s", "RECEIVED/s", "PACKETS/s", "AGAIN/s", "COMMAND"];
    let device = |rates: &DeviceRates<'_>| {
        let member = &rates.device.member;
        row([
            member.device.clone(),
            member.pid.to_string(),
            bytes(rates.sent),
            bytes(rates.received),
            count(rates.packets),
            count(rates.retransmits),
            rates.device.command.clone(),
        ])
    };
    style::headed(head, devices.iter().map(device))
}

/// Device and process, as they stand in the table of devices.
fn whose(of: &DeviceRates<'_>) -> [String; 2] {
    let member = &of.device.member;
    [member.device.clone(), member.pid.to_string()]
}

fn route_table(devices: &[DeviceRates<'_>]) -> Vec<Vec<String>> {
    let head = ["ROUTE", "DEVICE", "PID", "READ/s", "WRITTEN/s", "HOW"];
    let route = |of: &DeviceRates<'_>, taken: &RouteRates<'_>| {
        let route = taken.route;
        let how = match route.map_type {
            MapType::None => "DMA to host memory".to_owned(),
            peer if route.translated => format!("{peer}, translated"),
            peer => peer.to_string(),
        };
        let name = format!("{} to {}", route.function, route.target);
        let [device, pid] = whose(of);
        row([name, device, pid, bytes(taken.read), bytes(taken.written), how])
    };
    let routes = devices.iter().flat_map(|of| of.routes.iter().map(move |taken| route(of, taken)));
    style::headed(head, routes)
}

fn link_table(devices: &[DeviceRates<'_>]) -> Vec<Vec<String>> {
    let head = ["LINK", "DEVICE", "PID", "BYTES/s", "OF"];
    let link = |of: &DeviceRates<'_>, rate: &LinkRate| {
        let [device, pid] = whose(of);
        let share = rate.limit.map_or_else(String::new, |limit| {
            let percent = 100.0 * rate.bytes / limit as f64;
            format!("{}/s each way, {percent:.1} %", style::bytes(limit))
        });
        row([rate.link.to_string(), device, pid, bytes(rate.bytes), share])
    };
    let links = devices.iter().flat_map(|of| of.links.iter().map(move |rate| link(of, rate)));
    style::headed(head, links)
}

fn qp_table(devices: &[DeviceRates<'_>], most: usize) -> Vec<Vec<String>> {
    let head = ["QP", "PID", "TYPE", "STATE", "PEER", "LINK", "SENT/s", "RECEIVED/s"];
    let mut qps: Vec<(i32, &QpRates<'_>)> = devices
        .iter()
        .flat_map(|of| of.qps.iter().map(move |qp| (of.device.member.pid, qp)))
        .collect();
    qps.sort_by(|(_, a), (_, b)| (b.sent + b.received).total_cmp(&(a.sent + a.received)));
    let hidden = qps.len().saturating_sub(most);
    let qp = |(pid, rates): (i32, &QpRates<'_>)| {
        row([
            format!("0x{:06x}", rates.qp.number),
            pid.to_string(),
            qp_type(rates.qp.qp_type).to_owned(),
            qp_state(rates.qp.state).to_owned(),
            if rates.qp.dest_qpn == 0 {
                String::new()
            } else {
                format!("0x{:06x}", rates.qp.dest_qpn)
            },
            link_of(rates.qp).to_owned(),
            bytes(rates.sent),
            bytes(rates.received),
        ])
    };
    let mut table = style::headed(head, qps.into_iter().take(most).map(qp));
    if hidden > 0 {
        table.push(vec![format!("and {hidden} more")]);
    }
    table
}

/// `enum ibv_qp_type`.
fn qp_type(number: u32) -> &'static str {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW",
        9 => "XRC_SEND",
        10 => "XRC_RECV",
        _ => "?",
    }
}

/// How what it asks goes, by the words of `--link`; empty while it is not connected.
fn link_of(qp: &hca::directory::QpEntry) -> &'static str {
    match (qp.goes_directly, qp.dest_qpn) {
        (true, _) => "local",
        (false, 0) => "",
        (false, _) => "roce",
    }
}

/// `enum ibv_qp_state`.
fn qp_state(number: u32) -> &'static str {
    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"].get(number as usize).unwrap_or(&"?")
}

/// One line for a sample.
pub fn json(devices: &[DeviceRates<'_>], now: &Sample) -> Value {
    let time = now.time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    json!({
        "time": time,
        "devices": devices.iter().map(device_json).collect::<Vec<_>>(),
        "unread": now.unread.iter().map(Unread::json).collect::<Vec<_>>(),
    })
}

fn device_json(rates: &DeviceRates<'_>) -> Value {
    let device = rates.device;
    json!({
        "device": device.member.device,
        "pid": device.member.pid,
        "command": device.command,
        "sent_bytes_per_second": rates.sent,
        "received_bytes_per_second": rates.received,
        "packets_per_second": rates.packets,
        "retransmits_per_second": rates.retransmits,
        "qps": rates.qps.iter().map(|of| json!({
            "number": of.qp.number,
            "type": qp_type(of.qp.qp_type),
            "state": qp_state(of.qp.state),
            "peer": of.qp.dest_qpn,
            "link": link_of(of.qp),
            "sent_bytes": of.qp.tx_bytes,
            "received_bytes": of.qp.rx_bytes,
            "sent_bytes_per_second": of.sent,
            "received_bytes_per_second": of.received,
        })).collect::<Vec<_>>(),
        "routes": rates.routes.iter().map(|of| json!({
            "function": of.route.function.to_string(),
            "target": of.route.target.to_string(),
            "map_type": of.route.map_type.to_string(),
            "translated": of.route.translated,
            "read_bytes": of.route.read_bytes,
            "written_bytes": of.route.written_bytes,
            "read_bytes_per_second": of.read,
            "written_bytes_per_second": of.written,
        })).collect::<Vec<_>>(),
        "links": rates.links.iter().map(|of| json!({
            "link": of.link.to_string(),
            "bytes_per_second": of.bytes,
            "limit_bytes_per_second": of.limit,
        })).collect::<Vec<_>>(),
    })
}
