//! The drawing of what is laid out: bands of NUMA nodes and sockets, links, ways, boxes.

use super::layout::{Band, GUTTER, Layout, MARGIN, Placed};
use super::markup::{PALETTE, escape, points, put};
use crate::machine::pairs::Pair;
use crate::machine::topo::view::What;
use pcie::{Function, LinkId, Role};

/// Height of a box.
const BOX: f64 = 32.0;
/// Distance of ways that share a link.
const LANE: f64 = 2.6;

/// A way by the boxes whose links towards the host bridge it takes.
pub(super) struct Traced {
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

impl Layout<'_> {
    /// The boxes whose links a pair's way takes, from the adapter up to where the ways meet, and
    /// down to the GPU.
    pub(super) fn trace(&self, pair: &Pair<'_>) -> Option<Traced> {
        let at = |function| self.placed.iter().position(|placed| placed.is(function));
        let (gpu, nic) = (at(pair.gpu)?, at(pair.nic)?);
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

    pub(super) fn draw_bands(&self, out: &mut String, width: f64) {
        let edges = |mirrored: bool| match (self.halves, mirrored) {
            (false, _) => (MARGIN / 2.0, width - MARGIN / 2.0),
            (true, true) => (MARGIN / 2.0, self.gutter() - GUTTER / 2.0 + 6.0),
            (true, false) => (self.gutter() + GUTTER / 2.0 - 6.0, width - MARGIN / 2.0),
        };
        let sockets = self.sockets();
        for (_, mirrored, top, bottom) in &sockets {
            let (left, right) = edges(*mirrored);
            put(
                out,
                format_args!(
                    "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"8\" \
                     fill=\"none\" stroke=\"#b9bec6\"/>",
                    left - 4.0,
                    top - 22.0,
                    right - left + 8.0,
                    bottom - top + 32.0
                ),
            );
        }
        for Band { node, top, bottom, mirrored, .. } in &self.bands {
            let (left, right) = edges(*mirrored);
            put(
                out,
                format_args!(
                    "<rect x=\"{left:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\" \
                     fill=\"#f4f5f7\" fill-opacity=\"0.7\"/>",
                    top - 18.0,
                    right - left,
                    bottom - top + 24.0
                ),
            );
            let name = node.map_or("NUMA node unknown".into(), |node| format!("NUMA node {node}"));
            put(
                out,
                format_args!(
                    "<text class=\"small\" text-anchor=\"end\" x=\"{:.0}\" \
                     y=\"{:.0}\">{name}</text>",
                    right - MARGIN / 2.0,
                    top - 5.0
                ),
            );
        }
        for (name, mirrored, top, _) in &sockets {
            let (left, _) = edges(*mirrored);
            put(
                out,
                format_args!(
                    "<text class=\"name\" x=\"{:.0}\" y=\"{:.0}\">{name}</text>",
                    left + 8.0,
                    top - 5.0
                ),
            );
        }
    }

    /// The sockets, where there are several: name, half, top and bottom.
    fn sockets(&self) -> Vec<(String, bool, f64, f64)> {
        let mut sockets: Vec<(u32, bool, f64, f64)> = Vec::new();
        for band in &self.bands {
            let Some(socket) = band.socket else { continue };
            match sockets.last_mut() {
                Some(last) if (last.0, last.1) == (socket, band.mirrored) => last.3 = band.bottom,
                _ => sockets.push((socket, band.mirrored, band.top, band.bottom)),
            }
        }
        if sockets.iter().all(|socket| socket.0 == sockets[0].0) {
            return Vec::new();
        }
        let named =
            |(socket, mirrored, top, bottom)| (format!("socket {socket}"), mirrored, top, bottom);
        sockets.into_iter().map(named).collect()
    }

    /// Corners of the line from a box to the one nearer to the host bridge.
    fn line(&self, child: &Placed<'_>, shift: f64) -> Vec<(f64, f64)> {
        let Some(parent) = child.parent.map(|index| &self.placed[index]) else { return Vec::new() };
        let at = |x: f64| self.at(child.mirrored, x);
        let edge = parent.x + parent.width;
        let bend = edge + 16.0 + shift;
        let (from, to) = (parent.y + shift, child.y + shift);
        vec![(at(child.x), to), (at(bend), to), (at(bend), from), (at(edge), from)]
    }

    pub(super) fn draw_links(&self, out: &mut String, ways: &[Traced]) {
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
                let anchor = if child.mirrored { "start" } else { "end" };
                put(
                    out,
                    format_args!(
                        "<text class=\"small\" text-anchor=\"{anchor}\" x=\"{:.0}\" \
                         y=\"{y:.1}\">{}</text>",
                        self.at(child.mirrored, child.x - 8.0),
                        escape(&child.label)
                    ),
                );
            }
        }
    }

    pub(super) fn draw_ways(&self, out: &mut String, ways: &[Traced]) {
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
                // past both host bridges, through the room between them
                let shift = (index as f64 - (ways.len() as f64 - 1.0) / 2.0) * LANE;
                let x = self.gutter() + shift.clamp(-GUTTER / 2.5, GUTTER / 2.5);
                let past = |host: usize| {
                    let host = &self.placed[host];
                    let y = host.y + shift.clamp(-BOX / 2.5, BOX / 2.5);
                    [(self.at(host.mirrored, host.x), y), (x, y)]
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

    pub(super) fn draw_boxes(&self, out: &mut String) {
        for placed in &self.placed {
            let (fill, stroke) = colours(placed.what);
            let x = match placed.mirrored {
                true => self.at(true, placed.x + placed.width),
                false => self.at(false, placed.x),
            };
            put(
                out,
                format_args!(
                    "<rect x=\"{x:.0}\" y=\"{:.1}\" width=\"{:.0}\" height=\"{BOX}\" rx=\"5\" \
                     fill=\"{fill}\" stroke=\"{stroke}\"/>",
                    placed.y - BOX / 2.0,
                    placed.width
                ),
            );
            let rise = if placed.second.is_empty() { 4.0 } else { -2.0 };
            let texts = [("name", rise, &placed.first), ("small", 11.0, &placed.second)];
            for (class, rise, text) in texts.into_iter().filter(|(_, _, text)| !text.is_empty()) {
                put(
                    out,
                    format_args!(
                        "<text class=\"{class}\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                        x + 10.0,
                        placed.y + rise,
                        escape(text)
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
