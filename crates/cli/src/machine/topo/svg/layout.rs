//! Where everything of the picture stands: a row for each device or group of equals, a column for
//! each depth, and on a tall machine two halves whose host bridges face each other, so that the
//! picture is wider than high.

use crate::machine::topo::view::{Node, What};
use crate::machine::{fold, names};
use pcie::{Function, Machine};
use std::ops::Range;

/// Height of a device's row in pixels.
pub(super) const ROW: f64 = 40.0;
/// Width of a character at the size of the small text, and of the large.
pub(super) const SMALL: f64 = 6.1;
pub(super) const LARGE: f64 = 7.3;
pub(super) const MARGIN: f64 = 24.0;
/// Room for ways that pass between host bridges.
pub(super) const GUTTER: f64 = 70.0;
/// Where the first row begins.
const TOP: f64 = 98.0;
/// Room between what hangs below one host bridge and the next.
const HOST_GAP: f64 = 8.0;
/// A picture of more rows has equal devices in one box, and is made of two halves.
const MOST_ROWS: usize = 14;

/// Left edges and widths of the columns: host bridges, then as many of switches as the deepest
/// branch has, then devices.
struct Columns {
    left: Vec<f64>,
    width: Vec<f64>,
}

impl Columns {
    fn fit(texts: &Texts<'_>, hosts: &[Node<'_>]) -> Columns {
        let deepest = hosts.iter().map(switches_below).max().unwrap_or(0);
        // characters of the widest box, and of the widest label before it
        let mut boxes = vec![0.0f64; deepest + 2];
        let mut labels = vec![0usize; deepest + 2];
        measure(texts, hosts, 0, &mut boxes, &mut labels);
        let (mut left, mut width) = (Vec::new(), Vec::new());
        let mut x = 0.0;
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
        self.left.last().zip(self.width.last()).map_or(300.0, |(x, w)| x + w)
    }
}

fn switches_below(node: &Node<'_>) -> usize {
    let own = usize::from(matches!(node.what, What::Switch(_)));
    own + node.children.iter().map(switches_below).max().unwrap_or(0)
}

fn measure(
    texts: &Texts<'_>,
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
        let (first, second) = texts.of(node.what, &node.equals);
        let wide =
            (first.chars().count() as f64 * LARGE).max(second.chars().count() as f64 * SMALL);
        boxes[column] = boxes[column].max(wide);
        // the label stands right before the box, whatever columns the line crosses
        labels[column] = labels[column].max(texts.link(node).chars().count());
        measure(texts, &node.children, depth + 1, boxes, labels);
    }
}

/// What is written into boxes and beside links.
struct Texts<'a> {
    machine: &'a Machine,
    /// Whether less is said, as in a picture of two halves.
    short: bool,
}

impl Texts<'_> {
    /// The two lines of a box.
    fn of(&self, what: What<'_>, equals: &[&Function]) -> (String, String) {
        let longest = if self.short { 30 } else { 52 };
        let cut = |text: String| match text.char_indices().nth(longest) {
            Some((at, _)) => format!("{}…", &text[..at]),
            None => text,
        };
        let product = |function| cut(names::product(function).unwrap_or_default());
        match what {
            What::Host(index) => (cut(self.machine.hosts()[index].name.clone()), String::new()),
            What::Switch(function) => (format!("switch {}", function.address), product(function)),
            What::Device(function) if equals.is_empty() => (
                cut(format!("{} {}", names::titled(function), function.address)),
                product(function),
            ),
            What::Device(function) => {
                let all: Vec<&Function> =
                    std::iter::once(function).chain(equals.iter().copied()).collect();
                let text =
                    format!("{} × {} {}", all.len(), names::role(function), fold::functions(&all));
                (cut(text), product(function))
            }
        }
    }

    fn link(&self, node: &Node<'_>) -> String {
        let port = node.port.filter(|_| !self.short && node.equals.is_empty());
        let port = port.map(|port| port.address.to_string());
        let link = node.link(self.machine).map(|link| link.to_string());
        [port, link].into_iter().flatten().collect::<Vec<_>>().join("  ")
    }
}

/// A box in its place. Its `x` counts from the host bridges outwards.
pub(super) struct Placed<'a> {
    pub what: What<'a>,
    /// Devices that the box stands for besides its own.
    equals: Vec<&'a Function>,
    pub first: String,
    pub second: String,
    pub label: String,
    pub parent: Option<usize>,
    pub x: f64,
    pub width: f64,
    /// Where the rows of what hangs below it begin.
    top: f64,
    /// Middle.
    pub y: f64,
    /// Whether it is in the left half, which is a mirror image.
    pub mirrored: bool,
}

impl Placed<'_> {
    pub fn is(&self, function: &Function) -> bool {
        let own = matches!(self.what, What::Device(own) if own.address == function.address);
        own || self.equals.iter().any(|equal| equal.address == function.address)
    }
}

/// The rows of a NUMA node.
pub(super) struct Band {
    pub node: Option<u32>,
    pub socket: Option<u32>,
    pub top: f64,
    pub bottom: f64,
    boxes: Range<usize>,
    pub mirrored: bool,
}

/// The picture without its drawing.
pub(super) struct Layout<'a> {
    pub placed: Vec<Placed<'a>>,
    pub bands: Vec<Band>,
    /// Where the host bridges begin: the middle of a picture in two halves.
    middle: f64,
    pub halves: bool,
    pub width: f64,
    /// Where the rows end.
    pub bottom: f64,
    columns: Columns,
}

impl<'a> Layout<'a> {
    pub fn new(machine: &'a Machine, hosts: Vec<Node<'a>>) -> Layout<'a> {
        let tall = hosts.iter().map(rows).sum::<usize>() > MOST_ROWS;
        let hosts = if tall { hosts.into_iter().map(folded).collect() } else { hosts };
        let halves = tall && hosts.len() > 1;
        let texts = Texts { machine, short: halves };
        let columns = Columns::fit(&texts, &hosts);
        let reach = columns.width() + MARGIN;
        let (middle, width) = match halves {
            true => (reach + GUTTER / 2.0, 2.0 * reach + GUTTER),
            false => (MARGIN + GUTTER / 2.0, MARGIN + GUTTER + reach),
        };
        let mut layout = Layout {
            placed: Vec::new(),
            bands: Vec::new(),
            middle,
            halves,
            width,
            bottom: TOP,
            columns,
        };
        layout.hosts(machine, &texts, &hosts);
        if halves {
            layout.halve_only_band();
            layout.halve();
        }
        layout
    }

    /// Where a place within a half is in the picture.
    pub fn at(&self, mirrored: bool, x: f64) -> f64 {
        let out = GUTTER / 2.0 + x;
        if mirrored { self.middle - out } else { self.middle + out }
    }

    /// The room between the halves, or left of the only one.
    pub fn gutter(&self) -> f64 {
        self.middle
    }

    fn hosts(&mut self, machine: &'a Machine, texts: &Texts<'_>, hosts: &[Node<'a>]) {
        for host in hosts {
            let What::Host(index) = host.what else { continue };
            let node = machine.hosts()[index].numa_node;
            let same = self.bands.last().is_some_and(|band| band.node == node);
            if !same && !self.bands.is_empty() {
                // room for the band's heading
                self.bottom += 40.0;
            }
            let (top, first) = (self.bottom, self.placed.len());
            self.place(texts, host, None, 0);
            match self.bands.last_mut() {
                Some(band) if same => {
                    band.bottom = self.bottom;
                    band.boxes.end = self.placed.len();
                }
                _ => self.bands.push(Band {
                    node,
                    socket: node.and_then(|node| machine.sockets().of_node.get(&node).copied()),
                    top,
                    bottom: self.bottom,
                    boxes: first..self.placed.len(),
                    mirrored: false,
                }),
            }
            self.bottom += HOST_GAP;
        }
    }

    fn place(
        &mut self,
        texts: &Texts<'_>,
        node: &Node<'a>,
        parent: Option<usize>,
        depth: usize,
    ) -> f64 {
        let (x, width) = self.columns.of(node.what, depth);
        let index = self.placed.len();
        let (first, second) = texts.of(node.what, &node.equals);
        let top = self.bottom;
        self.placed.push(Placed {
            what: node.what,
            equals: node.equals.clone(),
            first,
            second,
            label: texts.link(node),
            parent,
            x,
            width,
            top,
            y: 0.0,
            mirrored: false,
        });
        let rows: Vec<f64> = node
            .children
            .iter()
            .map(|child| self.place(texts, child, Some(index), depth + 1))
            .collect();
        let y = match rows.as_slice() {
            [] => {
                self.bottom += ROW;
                self.bottom - ROW / 2.0
            }
            [first, .., last] => (first + last) / 2.0,
            [only] => *only,
        };
        self.placed[index].y = y;
        y
    }

    /// Makes two bands of one node's where there is no other, so that there are halves: between two
    /// host bridges, where both are about as high.
    fn halve_only_band(&mut self) {
        let [band] = self.bands.as_mut_slice() else { return };
        let hosts = band.boxes.clone().filter(|&index| self.placed[index].parent.is_none());
        let middle = (band.top + band.bottom) / 2.0;
        let apart = |at: &usize| (self.placed[*at].top - middle).abs();
        let Some(split) = hosts.skip(1).min_by(|a, b| apart(a).total_cmp(&apart(b))) else {
            return;
        };
        let second = Band { top: self.placed[split].top, boxes: split..band.boxes.end, ..*band };
        (band.bottom, band.boxes.end) = (second.top - HOST_GAP, split);
        self.bands.push(second);
    }

    /// Moves the first bands into the left half, as many as make both about as high; a socket's
    /// stay together where there are several.
    fn halve(&mut self) {
        let end = |band: &Band| band.bottom - TOP;
        let height = self.bands.last().map_or(0.0, end);
        let several = self.bands.iter().any(|band| band.socket != self.bands[0].socket);
        let may_end = |at: usize| !several || self.bands[at - 1].socket != self.bands[at].socket;
        let imbalance = |at: &usize| (end(&self.bands[*at - 1]) * 2.0 - height).abs();
        let splits = (1..self.bands.len()).filter(|at| may_end(*at));
        let Some(split) = splits.min_by(|a, b| imbalance(a).total_cmp(&imbalance(b))) else {
            return;
        };
        let up = self.bands[split].top - TOP;
        for (index, band) in self.bands.iter_mut().enumerate() {
            band.mirrored = index < split;
            for placed in &mut self.placed[band.boxes.clone()] {
                placed.mirrored = band.mirrored;
                placed.y -= if band.mirrored { 0.0 } else { up };
            }
            if !band.mirrored {
                band.top -= up;
                band.bottom -= up;
            }
        }
        self.bottom = self.bands.iter().map(|band| band.bottom).fold(TOP, f64::max) + HOST_GAP;
    }
}

fn rows(node: &Node<'_>) -> usize {
    node.children.iter().map(rows).sum::<usize>().max(1)
}

/// A tree in which devices beside each other that differ in name alone are one.
fn folded<'a>(node: Node<'a>) -> Node<'a> {
    let mut children: Vec<Node<'a>> = Vec::new();
    for child in node.children.into_iter().map(folded) {
        let alike = |other: &Node<'a>| match (other.what, child.what) {
            (What::Device(a), What::Device(b)) => {
                (a.role, a.id, a.link, &a.product) == (b.role, b.id, b.link, &b.product)
            }
            _ => false,
        };
        match (children.iter_mut().find(|other| alike(other)), child.what) {
            (Some(other), What::Device(function)) => other.equals.push(function),
            _ => children.push(child),
        }
    }
    Node { children, ..node }
}
