//! The machine as a picture: host bridges on the left, devices on the right, one row each, links
//! labelled, ways coloured. A tall machine stands in two halves that face each other, with equal
//! devices in one box.
//!
//! Every box has a row of its own and every column is as wide as its longest text, so nothing
//! overlaps.

mod draw;
mod layout;
mod markup;

use super::view::nodes;
use crate::console::style;
use crate::machine::names;
use crate::machine::pairs::Pair;
use draw::Traced;
use layout::{Layout, MARGIN, SMALL};
use markup::{PALETTE, cut, escape, put};
use topology::Capture;

/// Draws the machine with the ways of `pairs`.
pub fn picture(capture: &Capture, pairs: &[Pair<'_>], all: bool) -> String {
    let machine = &capture.machine;
    let layout = Layout::new(machine, nodes(machine, all));
    let (pairs, ways): (Vec<&Pair<'_>>, Vec<Traced>) =
        pairs.iter().filter_map(|pair| Some((pair, layout.trace(pair)?))).unzip();
    let legend = legend(&pairs);
    let longest = legend.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
    let column = MARGIN * 3.0 + longest as f64 * SMALL;
    let beside = if column > 0.0 { ((layout.width / column) as usize).clamp(1, 4) } else { 1 };
    let lines = legend.len().div_ceil(beside);
    let height = layout.bottom + 24.0 + lines as f64 * 18.0 + MARGIN;
    let width = layout.width.max(column).max(400.0);
    let mut out = String::new();
    head(&mut out, capture, width, height);
    layout.draw_bands(&mut out, width);
    layout.draw_links(&mut out, &ways);
    layout.draw_ways(&mut out, &ways);
    layout.draw_boxes(&mut out);
    for (index, (text, colour)) in legend.iter().enumerate() {
        let x = MARGIN + (index / lines.max(1)) as f64 * column;
        let y = layout.bottom + 30.0 + (index % lines.max(1)) as f64 * 18.0;
        put(
            &mut out,
            format_args!(
                "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>",
                y - 6.0
            ),
        );
        put(
            &mut out,
            format_args!(
                "<text class=\"small\" x=\"{:.0}\" y=\"{y:.0}\">{}</text>",
                x + 22.0,
                escape(text)
            ),
        );
    }
    out.push_str("</svg>\n");
    out
}

fn head(out: &mut String, capture: &Capture, width: f64, height: f64) {
    put(
        out,
        format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\">"
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
    let links = super::links::lines(&capture.machine, usize::MAX).join("; ");
    let fits = ((width - 2.0 * MARGIN) / SMALL) as usize;
    let links = cut(links, fits);
    if !links.is_empty() {
        put(
            out,
            format_args!("<text class=\"small\" x=\"{MARGIN}\" y=\"66\">{}</text>", escape(&links)),
        );
    }
}

/// What each colour is.
fn legend(pairs: &[&Pair<'_>]) -> Vec<(String, &'static str)> {
    let line = |(index, pair): (usize, &&Pair<'_>)| {
        let rate = pair.way.bytes_per_second.map_or_else(|| "rate unknown".into(), style::rate);
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

#[cfg(test)]
mod tests {
    use super::layout::LARGE;
    use super::*;
    use crate::machine::pairs::nearest;
    use pcie::Machine;
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
        let pairs: Vec<_> = nearest(&capture.machine).into_iter().map(|near| near.pair).collect();
        let picture = picture(&capture, &pairs, false);
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
                        "[[port]]\naddress = \"{bus:02x}:{device:02x}.0\"\nkind = \"{kind}\"\n\
                         below = \"{below}\"\nlink = {{ speed_gts = 32.0, width = 16 }}\n"
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
                        "[[function]]\nname = \"{role}{socket}{switch}{slot}\"\nrole = \"{role}\"\n\
                         address = \"{:02x}:00.0\"\nbelow = \"{below}\"\nid = \"10de:2330\"\n\
                         class = {class}\n",
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

    /// Eight GPUs and 32 adapters on one root bus.
    fn one_bus() -> Machine {
        let mut text = "[[host_bridge]]\nname = \"pci0000:00\"\nnuma_node = 0\n".to_owned();
        for number in 0..40u8 {
            let (role, number, id, class) = match number.checked_sub(8) {
                Some(hca) => ("hca", hca, "15b3:1021", "0x020700"),
                None => ("gpu", number, "10de:2330", "0x030200"),
            };
            let at = format!(
                "00:{:02x}.{}",
                if role == "gpu" { number } else { 8 + number / 8 },
                number % 8
            );
            text += &format!(
                "[[function]]\nname = \"{role}{number}\"\nrole = \"{role}\"\naddress = \"{at}\"\n\
                 below = \"pci0000:00\"\nid = \"{id}\"\nclass = {class}\n"
            );
        }
        pcie::Platform::from_toml(&text).unwrap().machine().clone()
    }

    /// Eight host bridges on as many nodes, below each a switch with a GPU and four adapters.
    fn wide(nodes: u8) -> Machine {
        let mut text = "cpu = { vendor = \"GenuineIntel\", family = 6 }\n".to_owned();
        let mut rest = String::new();
        let port = |bus: u8, device: u8, kind: &str, below: &str| {
            format!(
                "[[port]]\naddress = \"{bus:02x}:{device:02x}.0\"\nkind = \"{kind}\"\n\
                 below = \"{below}\"\nlink = {{ speed_gts = 32.0, width = 16 }}\n"
            )
        };
        for switch in 0..8u8 {
            let bus = 0x10 + switch * 0x10;
            text += &format!(
                "[[host_bridge]]\nname = \"pci0000:{bus:02x}\"\nnuma_node = {}\n",
                switch / (8 / nodes)
            );
            rest += &port(bus, 1, "root-port", &format!("pci0000:{bus:02x}"));
            rest += &port(bus + 1, 0, "switch-upstream", &format!("{bus:02x}:01.0"));
            for slot in 0..5u8 {
                rest += &port(bus + 2, slot, "switch-downstream", &format!("{:02x}:00.0", bus + 1));
                let (role, number, id, class) = match slot {
                    4 => ("gpu", switch, "10de:2330", "0x030200"),
                    slot => ("hca", switch * 4 + slot, "15b3:1021", "0x020700"),
                };
                rest += &format!(
                    "[[function]]\nname = \"{role}{number}\"\nrole = \"{role}\"\n\
                     address = \"{:02x}:00.0\"\nbelow = \"{:02x}:{slot:02x}.0\"\nid = \"{id}\"\n\
                     class = {class}\n",
                    bus + 3 + slot,
                    bus + 2
                );
            }
        }
        let mut machine = pcie::Platform::from_toml(&(text + &rest)).unwrap().machine().clone();
        machine
            .set_sockets(pcie::Sockets { of_node: [(0, 0), (1, 1)].into(), ..Default::default() });
        machine
    }

    #[test]
    fn thirty_two_adapters_are_a_landscape_that_can_be_read() {
        let two_sockets = ["4 × NIC hca{28..31}", ">socket 0<", ">socket 1<"];
        for (machine, halves, said) in [
            (one_bus(), false, &["8 × GPU gpu{0..7}", "32 × NIC hca{0..31}"][..]),
            (wide(1), true, &two_sockets[..1]),
            (wide(2), true, &two_sockets),
        ] {
            no_text_touches_another(machine.clone());
            let capture =
                Capture { machine, format: Format::Platform, name: None, notes: Vec::new() };
            let pairs = nearest(&capture.machine).into_iter().map(|near| near.pair);
            let picture = picture(&capture, &pairs.collect::<Vec<_>>(), false);
            let size = |name: &str| -> f64 {
                let (_, rest) = picture.split_once(&format!(" {name}=\"")).unwrap();
                rest.split('"').next().unwrap().parse().unwrap()
            };
            let (width, height) = (size("width"), size("height"));
            assert!(width > height, "{width} x {height}");
            // small text has 10 pixels, and must have 8 when the picture is shown at 1600
            assert!(width <= 2000.0, "{width}");
            for text in said {
                assert!(picture.contains(text), "{text}");
            }
            assert_eq!(picture.matches("class=\"way\"").count(), 8);
            let devices = texts(&picture).into_iter().filter(|text| text.4.contains(" NIC "));
            let (left, right): (Vec<_>, Vec<_>) = devices.partition(|text| text.2 < width / 2.0);
            let expected = if halves { (4, 4) } else { (0, 1) };
            assert_eq!((left.len(), right.len()), expected, "{said:?}");
        }
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
