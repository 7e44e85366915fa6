# Draws the points of a record that `cargo xtask bench --only curves` made, as SVG with two
# logarithmic axes: medians joined by lines, and for each the least and the greatest as a bar.
#
#   awk -v plot=bandwidth -f draw.awk -f curves.awk curves.json     and so latency, rate, cpu

BEGIN {
    left = 90; right = 640; top = 44; bottom = 424; width = 900; height = 484
    split("#0072b2,#d55e00,#009e73,#aa4499,#555555", colour, ",")
    title["bandwidth"] = "GB/s by message size"
    title["latency"] = "Latency (half a round trip) by message size"
    title["rate"] = "Messages of 8 bytes a second by queue pairs"
    title["cpu"] = "CPU time of both ends by message size, nanoseconds a byte"
}

/^\{"machine"/ { stamp = field("machine") ", " field("date") ", " field("rounds") " rounds" }

field("plot") == plot {
    of = field("series")
    if (!(of in points)) enter(of)
    n = ++points[of]
    x[of, n] = field("x"); y[of, n] = field("median")
    least[of, n] = field("least"); most[of, n] = field("most")
    first = end(first, x[of, n], -1); last = end(last, x[of, n], 1)
    low = end(low, least[of, n], -1); high = end(high, most[of, n], 1)
}

# The value of a member of the object in this line, which has no other of that name.
function field(member,    at, text) {
    at = index($0, "\"" member "\":")
    if (!at) return ""
    text = substr($0, at + length(member) + 3)
    if (text ~ /^"/) { match(text, /^"[^"]*"/); return substr(text, 2, RLENGTH - 2) }
    match(text, /^[^,}]*/)
    return substr(text, 1, RLENGTH) + 0
}

# A curve that is new. Those whose names begin alike, up to the comma, have a colour.
function enter(of,    family) {
    name[++count] = of
    family = substr(of, 1, index(of, ",") - 1)
    if (!(family in known)) known[family] = colour[families++ % 5 + 1]
    tint[of] = known[family]
}

# The less (side -1) or the greater (1) of two, of which the first may not be there yet.
function end(before, value, side) {
    return before == "" || (value - before) * side > 0 ? value : before
}

function across(value) {
    return left + (last > first ? log(value / first) / log(last / first) : 0.5) * (right - left)
}

function up(value) { return bottom - log(value / low) / log(high / low) * (bottom - top) }

# A number in few letters.
function short(value) {
    if (plot == "latency") return value >= 1000 ? value / 1000 " ms" : value " µs"
    if (value >= 1e6) return value / 1e6 " M"
    return value >= 1e4 ? value / 1e3 " k" : value ""
}

function bytes(value) {
    if (value >= 1048576) return value / 1048576 " MiB"
    return value >= 1024 ? value / 1024 " KiB" : value " B"
}

# The axis up begins and ends at 1, 2 or 5 of a decade.
function axis_up(    decade, digit, value, ticks, tick, from, to) {
    for (decade = -9; decade <= 12; decade++)
        for (digit = 1; digit <= 5; digit += digit == 1 ? 1 : 3) tick[++ticks] = digit * 10 ^ decade
    for (from = 1; tick[from + 1] <= low * 1.000001; from++);
    for (to = from + 1; tick[to] < high * 0.999999; to++);
    low = tick[from]; high = tick[to]
    for (; from <= to; from++) {
        value = tick[from]
        printf "<path class=\"rule\" d=\"M%d %.1fH%d\"/>\n", left, up(value), right
        label(left - 8, up(value) + 4, "end", "small", short(value))
    }
}

function axis_across(    value) {
    for (value = first; value <= last * 1.000001; value *= plot == "rate" ? 2 : 4) {
        printf "<path class=\"rule\" d=\"M%.1f %dV%d\"/>\n", across(value), top, bottom
        label(across(value), bottom + 17, "middle", "small", plot == "rate" ? value : bytes(value))
    }
}

# What goes by packets or TCP is dashed and hollow, what goes by memory is full.
function by_packets(of) { return of ~ /(link roce|TCP)$/ }

function line(of, d,    dash) {
    dash = by_packets(of) ? " stroke-dasharray=\"5 3\"" : ""
    printf "<path d=\"%s\" stroke=\"%s\" fill=\"none\" stroke-width=\"1.6\"%s/>\n", d, tint[of], dash
}

function dot(of, at, above,    fill) {
    fill = by_packets(of) ? "#fff" : tint[of]
    printf "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" ", at, above
    printf "stroke=\"%s\" fill=\"%s\"/>\n", tint[of], fill
}

function curve(of,    n, d) {
    for (n = 1; n <= points[of]; n++)
        d = d sprintf("%s%.1f %.1f", n > 1 ? "L" : "M", across(x[of, n]), up(y[of, n]))
    line(of, d)
    for (n = 1; n <= points[of]; n++) {
        printf "<path d=\"M%.1f %.1fV%.1f\" ", across(x[of, n]), up(least[of, n]), up(most[of, n])
        printf "stroke=\"%s\"/>\n", tint[of]
        dot(of, across(x[of, n]), up(y[of, n]))
    }
}

function entry(of, at) {
    line(of, sprintf("M%d %dh34", right + 24, at))
    dot(of, right + 41, at)
    label(right + 66, at + 4, "start", "", of)
}

END {
    if (!count) { print "no points of " plot > "/dev/stderr"; exit 1 }
    begin(width, height)
    label(left, 24, "start", "", title[plot])
    label(left, height - 12, "start", "small", stamp)
    axis_up()
    axis_across()
    for (n = 1; n <= count; n++) curve(name[n])
    for (n = 1; n <= count; n++) entry(name[n], top + (n - 1) * 24 + 8)
    print "</svg>"
}
