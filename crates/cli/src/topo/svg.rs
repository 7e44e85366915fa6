//! The machine as a picture: host bridges on the left, devices on the right, one row each, links labelled, ways coloured.
//!
//! Every device has a row of its own and every column is as wide as its longest text, so nothing overlaps.

use super::view::{Node, What, nodes};
use super::{Pair, names};
use pcie::{Function, LinkId, Machine, Role};
use std::fmt::Write as _;
use topology::Capture;

/// Height of a device's row in pixels.
const ROW: f64 = 40.0;
/// Height of a box.
const BOX: f64 = 32.0;
/// Width of a character at the size of the small text, and of the large.
const SMALL: f64 = 6.1;
const LARGE: f64 = 7.3;
/// Distance of ways that share a link.
const LANE: f64 = 2.6;
const MARGIN: f64 = 24.0;
/// Room for ways that pass between host bridges.
const GUTTER: f64 = 70.0;

/// Colours that are told apart on white, also by most who do not see all colours.
const PALETTE: [&str; 8] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8c510a"];

/// Draws the machine with the ways of `pairs`.
pub fn picture(capture: &Capture, pairs: &[Pair<'_>], all: bool) -> String {
    let machine = &capture.machine;
    let hosts = nodes(machine, all);
    let columns = Columns::fit(machine, &hosts);
    let mut layout = Layout { machine, columns, placed: Vec::new(), y: 84.0, bands: Vec::new() };
    layout.hosts(&hosts);
    let (pairs, ways): (Vec<&Pair<'_>>, Vec<Traced>) =
        pairs.iter().filter_map(|pair| Some((pair, layout.trace(pair)?))).unzip();
    let legend = legend(&pairs);
    let height = layout.y + 24.0 + legend.len() as f64 * 18.0 + MARGIN;
    let longest = legend.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
    let width = layout.columns.width().max(MARGIN * 3.0 + longest as f64 * SMALL);
    let mut out = String::new();
    head(&mut out, capture, width, height);
    layout.draw_bands(&mut out, width);
    layout.draw_links(&mut out, &ways);
    layout.draw_ways(&mut out, &ways);
    layout.draw_boxes(&mut out);
    for (index, (text, colour)) in legend.iter().enumerate() {
        let y = layout.y + 30.0 + index as f64 * 18.0;
        put(
            &mut out,
            format_args!(
                "<rect x=\"{MARGIN}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
                y - 6.0
            ),
        );
        put(
            &mut out,
            format_args!(
                "<text class=\"small\" x=\"{}\" y=\"{y}\">{}</text>",
                MARGIN + 22.0,
                escape(text)
            ),
        );
    }
    out.push_str("</svg>\n");
    out
}

/// Writing into a string does not fail.
fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
}

fn head(out: &mut String, capture: &Capture, width: f64, height: f64) {
    put(
        out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">"
        ),
    );
    out.push_str(
        "<style>text{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;fill:#222}\
         .title{font-size:17px;font-weight:bold}.name{font-size:12px;font-weight:bold}\
         .small{font-size:10px;fill:#555}.link{fill:none;stroke:#9a9a9a;stroke-width:1.5}\
         .way{fill:none;stroke-width:2.5;stroke-linejoin:round}</style>\n",
    );
    put(out, format_args!("<rect width=\"{width:.0}\" height=\"{height:.0}\" fill=\"#fff\"/>"));
    let name = capture.name.as_deref().unwrap_or("Machine");
    put(out, format_args!("<text class=\"title\" x=\"{MARGIN}\" y=\"34\">{}</text>", escape(name)));
    let cpu = capture.machine.cpu().map(|cpu| format!("{} family {}, ", cpu.vendor, cpu.family));
    put(
        out,
        format_args!(
            "<text class=\"small\" x=\"{MARGIN}\" y=\"52\">{}read from {}</text>",
            escape(&cpu.unwrap_or_default()),
            capture.format
        ),
    );
}

/// What each colour is.
fn legend(pairs: &[&Pair<'_>]) -> Vec<(String, &'static str)> {
    let line = |(index, pair): (usize, &&Pair<'_>)| {
        let rate =
            pair.way.bytes_per_second.map_or_else(|| "rate unknown".into(), super::text::rate);
        let text = format!(
            "{} to {}: {}, {}, {rate}",
            names::label(pair.nic),
            names::label(pair.gpu),
            pair.label(),
            pair.way.verdict.map_type
        );
        (text, PALETTE[index % PALETTE.len()])
    };
    pairs.iter().enumerate().map(line).collect()
}

/// Left edges and widths of the columns: host bridges, then as many of switches as the deepest branch has, then devices.
struct Columns {
    left: Vec<f64>,
    width: Vec<f64>,
}

impl Columns {
    fn fit(machine: &Machine, hosts: &[Node<'_>]) -> Columns {
        let deepest = hosts.iter().map(switches_below).max().unwrap_or(0);
        // characters of the widest box, and of the widest label before it
        let mut boxes = vec![0.0f64; deepest + 2];
        let mut labels = vec![0usize; deepest + 2];
        measure(machine, hosts, 0, &mut boxes, &mut labels);
        let (mut left, mut width) = (Vec::new(), Vec::new());
        let mut x = MARGIN + GUTTER;
        for (box_width, label) in boxes.iter().zip(&labels) {
            if !left.is_empty() {
                x += (*label as f64 * SMALL + 34.0).max(70.0);
            }
            left.push(x);
            width.push(box_width + 20.0);
            x += box_width + 20.0;
        }
        Columns { left, width }
    }

    fn of(&self, what: What<'_>, depth: usize) -> (f64, f64) {
        let column = match what {
            What::Device(_) => self.left.len() - 1,
            _ => depth,
        };
        (self.left[column], self.width[column])
    }

    fn width(&self) -> f64 {
        self.left.last().zip(self.width.last()).map_or(400.0, |(x, w)| x + w + MARGIN)
    }
}

fn switches_below(node: &Node<'_>) -> usize {
    let own = usize::from(matches!(node.what, What::Switch(_)));
    own + node.children.iter().map(switches_below).max().unwrap_or(0)
}

fn measure(
    machine: &Machine,
    nodes: &[Node<'_>],
    depth: usize,
    boxes: &mut [f64],
    labels: &mut [usize],
) {
    for node in nodes {
        let column = match node.what {
            What::Device(_) => boxes.len() - 1,
            _ => depth,
        };
        let (first, second) = texts(machine, node.what);
        let wide =
            (first.chars().count() as f64 * LARGE).max(second.chars().count() as f64 * SMALL);
        boxes[column] = boxes[column].max(wide);
        // the label stands right before the box, whatever columns the line crosses
        labels[column] = labels[column].max(link_text(machine, node).chars().count());
        measure(machine, &node.children, depth + 1, boxes, labels);
    }
}

/// The two lines of a box.
fn texts(machine: &Machine, what: What<'_>) -> (String, String) {
    const LONGEST: usize = 52;
    let cut = |text: String| match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    };
    match what {
        What::Host(index) => {
            let host = &machine.hosts()[index];
            (host.name.clone(), String::new())
        }
        What::Switch(function) => (
            format!("switch {}", function.address),
            cut(names::product(function).unwrap_or_default()),
        ),
        What::Device(function) => (
            format!("{} {}", names::role(function), names::label(function)),
            cut(names::product(function).unwrap_or_default()),
        ),
    }
}

fn link_text(machine: &Machine, node: &Node<'_>) -> String {
    let port = node.port.map(|port| port.address.to_string());
    let link = node.link(machine).map(|link| link.to_string());
    [port, link].into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// A box in its place.
struct Placed<'a> {
    what: What<'a>,
    label: String,
    parent: Option<usize>,
    x: f64,
    width: f64,
    /// Middle.
    y: f64,
}

impl Placed<'_> {
    fn right(&self) -> f64 {
        self.x + self.width
    }
}

/// A way by the boxes whose links to the left it takes.
struct Traced {
    up: Vec<usize>,
    down: Vec<usize>,
    /// Host bridges that it passes between.
    between: Option<(usize, usize)>,
}

impl Traced {
    fn crosses(&self, index: usize) -> bool {
        self.up.contains(&index) || self.down.contains(&index)
    }
}

struct Layout<'a> {
    machine: &'a Machine,
    columns: Columns,
    placed: Vec<Placed<'a>>,
    y: f64,
    bands: Vec<(Option<u32>, f64, f64)>,
}

impl<'a> Layout<'a> {
    fn hosts(&mut self, hosts: &[Node<'a>]) {
        for host in hosts {
            let What::Host(index) = host.what else { continue };
            let node = self.machine.hosts()[index].numa_node;
            let same = self.bands.last().is_some_and(|band| band.0 == node);
            if !same {
                // room for the band's heading
                self.y += if self.bands.is_empty() { 14.0 } else { 40.0 };
            }
            let top = self.y;
            self.place(host, None, 0);
            match self.bands.last_mut() {
                Some(band) if same => band.2 = self.y,
                _ => self.bands.push((node, top, self.y)),
            }
            self.y += 8.0;
        }
    }

    fn place(&mut self, node: &Node<'a>, parent: Option<usize>, depth: usize) -> f64 {
        let (x, width) = self.columns.of(node.what, depth);
        let index = self.placed.len();
        let label = link_text(self.machine, node);
        self.placed.push(Placed { what: node.what, label, parent, x, width, y: 0.0 });
        let rows: Vec<f64> =
            node.children.iter().map(|child| self.place(child, Some(index), depth + 1)).collect();
        let y = match rows.as_slice() {
            [] => {
                self.y += ROW;
                self.y - ROW / 2.0
            }
            [first, .., last] => (first + last) / 2.0,
            [only] => *only,
        };
        self.placed[index].y = y;
        y
    }

    fn draw_bands(&self, out: &mut String, width: f64) {
        for (node, top, bottom) in &self.bands {
            put(
                out,
                format_args!(
                    "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\" fill=\"#f4f5f7\"/>",
                    MARGIN / 2.0,
                    top - 18.0,
                    width - MARGIN,
                    bottom - top + 24.0
                ),
            );
            let name = node.map_or("NUMA node unknown".into(), |node| format!("NUMA node {node}"));
            put(
                out,
                format_args!(
                    "<text class=\"small\" text-anchor=\"end\" x=\"{:.0}\" y=\"{:.0}\">{name}</text>",
                    width - MARGIN,
                    top - 5.0
                ),
            );
        }
    }

    /// Corners of the line from a box to the one left of it.
    fn line(&self, child: &Placed<'_>, shift: f64) -> Vec<(f64, f64)> {
        let Some(parent) = child.parent.map(|index| &self.placed[index]) else { return Vec::new() };
        let bend = parent.right() + 16.0 + shift;
        let from = (parent.right(), parent.y + shift);
        let to = (child.x, child.y + shift);
        vec![to, (bend, to.1), (bend, from.1), from]
    }

    fn draw_links(&self, out: &mut String, ways: &[Traced]) {
        for (index, child) in self.placed.iter().enumerate() {
            if child.parent.is_none() {
                continue;
            }
            let line = points(&self.line(child, 0.0));
            put(out, format_args!("<polyline class=\"link\" points=\"{line}\"/>"));
            if !child.label.is_empty() {
                // above the topmost of the ways that take this link
                let crossing = ways.iter().filter(|way| way.crosses(index)).count().max(1);
                let y = child.y - 6.0 - (crossing - 1) as f64 / 2.0 * LANE;
                put(
                    out,
                    format_args!(
                        "<text class=\"small\" text-anchor=\"end\" x=\"{:.0}\" y=\"{y:.1}\">{}</text>",
                        child.x - 8.0,
                        escape(&child.label)
                    ),
                );
            }
        }
    }

    fn draw_ways(&self, out: &mut String, ways: &[Traced]) {
        for (index, way) in ways.iter().enumerate() {
            let lane = |box_index: usize| {
                let crossing: Vec<usize> =
                    (0..ways.len()).filter(|&other| ways[other].crosses(box_index)).collect();
                let place = crossing.iter().position(|&other| other == index).unwrap_or(0);
                (place as f64 - (crossing.len() as f64 - 1.0) / 2.0) * LANE
            };
            let leg = |boxes: &[usize]| -> Vec<(f64, f64)> {
                boxes.iter().flat_map(|&at| self.line(&self.placed[at], lane(at))).collect()
            };
            let (mut corners, mut down) = (leg(&way.up), leg(&way.down));
            if let Some(hosts) = way.between {
                // past both host bridges, through the gutter at the left
                let shift = (index as f64 - (ways.len() as f64 - 1.0) / 2.0) * LANE;
                let x = MARGIN + GUTTER / 2.0 + shift.clamp(-GUTTER / 2.0, GUTTER / 2.0);
                let past = |host: usize| {
                    let host = &self.placed[host];
                    let y = host.y + shift.clamp(-BOX / 2.5, BOX / 2.5);
                    [(host.x, y), (x, y)]
                };
                corners.extend(past(hosts.0));
                down.extend(past(hosts.1));
            }
            down.reverse();
            corners.extend(down);
            let colour = PALETTE[index % PALETTE.len()];
            let line = points(&corners);
            put(
                out,
                format_args!("<polyline class=\"way\" stroke=\"{colour}\" points=\"{line}\"/>"),
            );
        }
    }

    /// The boxes whose links a pair's way takes, from the adapter up to where the ways meet, and down to the GPU.
    fn trace(&self, pair: &Pair<'_>) -> Option<Traced> {
        let at = |address| {
            self.placed.iter().position(|placed| match placed.what {
                What::Device(function) => function.address == address,
                _ => false,
            })
        };
        let (gpu, nic) = (at(pair.gpu.address)?, at(pair.nic.address)?);
        let chain = |from: usize| -> Vec<usize> {
            std::iter::successors(Some(from), |&index| self.placed[index].parent).collect()
        };
        let (ups, downs) = (chain(nic), chain(gpu));
        let is_host = |index: usize| matches!(self.placed[index].what, What::Host(_));
        let through = pair.way.links.iter().any(|hop| matches!(hop, LinkId::RootComplex(_)));
        // redirected: up to the host bridge, though a switch is nearer
        let top = ups
            .iter()
            .copied()
            .find(|&index| downs.contains(&index) && (!through || is_host(index)));
        let leg = |chain: &[usize]| -> Vec<usize> {
            let below = |&index: &usize| Some(index) != top && self.placed[index].parent.is_some();
            chain.iter().copied().take_while(below).collect()
        };
        let between = match top {
            Some(_) => None,
            None => ups.last().copied().zip(downs.last().copied()),
        };
        Some(Traced { up: leg(&ups), down: leg(&downs), between })
    }

    fn draw_boxes(&self, out: &mut String) {
        for placed in &self.placed {
            let (fill, stroke) = colours(placed.what);
            put(
                out,
                format_args!(
                    "<rect x=\"{:.0}\" y=\"{:.1}\" width=\"{:.0}\" height=\"{BOX}\" rx=\"5\" fill=\"{fill}\" stroke=\"{stroke}\"/>",
                    placed.x,
                    placed.y - BOX / 2.0,
                    placed.width
                ),
            );
            let (first, second) = texts(self.machine, placed.what);
            let rise = if second.is_empty() { 4.0 } else { -2.0 };
            put(
                out,
                format_args!(
                    "<text class=\"name\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                    placed.x + 10.0,
                    placed.y + rise,
                    escape(&first)
                ),
            );
            if !second.is_empty() {
                put(
                    out,
                    format_args!(
                        "<text class=\"small\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                        placed.x + 10.0,
                        placed.y + 11.0,
                        escape(&second)
                    ),
                );
            }
        }
    }
}

fn colours(what: What<'_>) -> (&'static str, &'static str) {
    let role = |function: &Function| function.role;
    match what {
        What::Host(_) => ("#e3e6ea", "#8a929c"),
        What::Switch(_) => ("#fff7e0", "#c9a227"),
        What::Device(function) if role(function) == Role::Gpu => ("#e4f3e1", "#4f9d45"),
        What::Device(function) if role(function) == Role::Hca => ("#e1ecf9", "#4178be"),
        What::Device(function) if role(function) == Role::DataDirect => ("#e0f4f4", "#2b8a8a"),
        What::Device(_) => ("#f7f7f7", "#aaaaaa"),
    }
}

fn points(corners: &[(f64, f64)]) -> String {
    let pairs: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    pairs.join(" ")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::nearest;
    use topology::Format;

    /// Left, top, right and bottom of every text, as wide as the picture reckons.
    fn texts(picture: &str) -> Vec<(f64, f64, f64, f64, String)> {
        let value = |tag: &str, name: &str| -> f64 {
            let at = tag.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
            tag[at..].split('"').next().unwrap().parse().unwrap()
        };
        let of = |line: &str| {
            let (tag, rest) = line.split_once('>').unwrap();
            let text = rest.split("</text>").next().unwrap().to_owned();
            let small = tag.contains("small");
            let width = text.chars().count() as f64 * if small { SMALL } else { LARGE };
            let (x, y) = (value(tag, "x"), value(tag, "y"));
            let left = if tag.contains("end") { x - width } else { x };
            (left, y - if small { 8.0 } else { 10.0 }, left + width, y + 1.0, text)
        };
        picture.lines().filter(|line| line.starts_with("<text")).map(of).collect()
    }

    fn no_text_touches_another(machine: Machine) {
        let capture = Capture { machine, format: Format::Platform, name: None, notes: Vec::new() };
        let picture = picture(&capture, &nearest(&capture.machine), false);
        let all = texts(&picture);
        assert!(all.len() > 5);
        for (index, a) in all.iter().enumerate() {
            for b in &all[index + 1..] {
                let apart = a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1;
                assert!(apart, "{} and {}", a.4, b.4);
            }
        }
    }

    /// Sockets with two switches each, `gpus` GPUs and a NIC below each switch.
    fn server(sockets: u8, gpus: u8) -> Machine {
        let mut text = "cpu = { vendor = \"GenuineIntel\", family = 6 }\n".to_owned();
        let mut rest = String::new();
        for socket in 0..sockets {
            text += &format!("[[host_bridge]]\nname = \"socket{socket}\"\nnuma_node = {socket}\n");
            for switch in 0..2u8 {
                let bus = 0x10 + socket * 0x40 + switch * 0x20;
                let port = |bus: u8, device: u8, kind: &str, below: &str| {
                    format!(
                        "[[port]]\naddress = \"{bus:02x}:{device:02x}.0\"\nkind = \"{kind}\"\nbelow = \"{below}\"\nlink = {{ speed_gts = 32.0, width = 16 }}\n"
                    )
                };
                let root = format!("{bus:02x}:01.0");
                rest += &port(bus, 1, "root-port", &format!("socket{socket}"));
                rest += &port(bus + 1, 0, "switch-upstream", &root);
                for slot in 0..=gpus {
                    let (role, class) =
                        if slot == gpus { ("hca", "0x020700") } else { ("gpu", "0x030200") };
                    rest +=
                        &port(bus + 2, slot, "switch-downstream", &format!("{:02x}:00.0", bus + 1));
                    let below = format!("{:02x}:{slot:02x}.0", bus + 2);
                    rest += &format!(
                        "[[function]]\nname = \"{role}{socket}{switch}{slot}\"\nrole = \"{role}\"\naddress = \"{:02x}:00.0\"\nbelow = \"{below}\"\nid = \"10de:2330\"\nclass = {class}\n",
                        bus + 3 + slot
                    );
                }
            }
        }
        pcie::Platform::from_toml(&(text + &rest)).unwrap().machine().clone()
    }

    #[test]
    fn small_and_large_machines_are_readable() {
        no_text_touches_another(pcie::Platform::default().machine().clone());
        no_text_touches_another(server(2, 4));
        no_text_touches_another(server(3, 8));
    }

    #[test]
    fn what_a_machine_says_of_itself_cannot_break_the_picture() {
        let capture = Capture {
            machine: server(1, 1),
            format: Format::Platform,
            name: Some("<script>&\"".into()),
            notes: Vec::new(),
        };
        let picture = picture(&capture, &[], false);
        assert!(picture.contains("&lt;script&gt;&amp;&quot;") && !picture.contains("<script>"));
    }
}
