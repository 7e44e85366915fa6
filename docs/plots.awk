# Draws the tables of docs/src/explanation/performance.md as SVG.
#
#   awk -v plot=throughput -f draw.awk -f plots.awk performance.md
#       bars: rows of the first table in GB/s
#   awk -v plot=registration -f draw.awk -f plots.awk performance.md
#       dots: times by size, a logarithmic axis

BEGIN { FS = " *\\| *"; left = 360; width = 900; line = 30; top = 40 }

/^\|/ { if (!table) count++; table = 1 }
!/^\|/ { table = 0 }
/^\| (what|---|registration)/ { if (count == 2 && /registration/) for (i = 3; i < NF; i++) size[i] = $i; next }

plot == "throughput" && count == 1 && table && $3 ~ /GB\/s/ { name[++rows] = $2; value[rows, 3] = $3 + 0 }
plot == "registration" && count == 2 && table {
    name[++rows] = $2
    for (i = 3; i < NF; i++) value[rows, i] = microseconds($i)
}

function microseconds(text) { return (text + 0) * (text ~ / ms/ ? 1000 : text ~ / s$/ ? 1e6 : 1) }

function rule(x, bottom) { printf "<path class=\"rule\" d=\"M%.1f %dV%.1f\"/>\n", x, top - 6, bottom }

END {
    if (!rows) { print "no such table" > "/dev/stderr"; exit 1 }
    bottom = top + rows * line
    begin(width, bottom + 34)
    room = width - left - 70
    if (plot == "throughput") {
        for (r = 1; r <= rows; r++) if (value[r, 3] > most) most = value[r, 3]
        for (g = 0; g <= most; g += 2) {
            rule(left + g / most * room, bottom)
            label(left + g / most * room, bottom + 16, "middle", "small", g)
        }
        label(left + room + 40, bottom + 16, "middle", "small", "GB/s")
        for (r = 1; r <= rows; r++) {
            y = top + (r - 1) * line
            printf "<rect class=\"c3\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"18\" rx=\"2\"/>\n", \
                left, y, value[r, 3] / most * room
            label(left - 10, y + 13, "end", "", name[r])
            label(left + value[r, 3] / most * room + 6, y + 13, "start", "small", value[r, 3])
        }
    } else {
        decades = 7
        split("0.1 µs,1 µs,10 µs,100 µs,1 ms,10 ms,100 ms,1 s", tick, ",")
        for (g = 0; g <= decades; g++) {
            rule(left + g / decades * room, bottom)
            label(left + g / decades * room, bottom + 16, "middle", "small", tick[g + 1])
        }
        for (i = 3; i <= 5; i++) {
            printf "<circle class=\"c%d\" cx=\"%d\" cy=\"16\" r=\"5\"/>\n", i, left + (i - 3) * 90
            label(left + (i - 3) * 90 + 10, 20, "start", "small", size[i])
        }
        for (r = 1; r <= rows; r++) {
            y = top + (r - 1) * line + 9
            label(left - 10, y + 4, "end", "", name[r])
            for (i = 5; i >= 3; i--) if (value[r, i] > 0) {
                x = log(value[r, i] / 0.1) / log(10) / decades * room
                printf "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%d\" r=\"5\" fill-opacity=\"0.85\"/>\n", \
                    i, left + x, y
            }
        }
    }
    print "</svg>"
}
