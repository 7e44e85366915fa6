# Draws the tables of docs/src/explanation/performance.md as SVG.
#
#   awk -v plot=throughput -f plots.awk performance.md     bars: rows of the first table in GB/s
#   awk -v plot=registration -f plots.awk performance.md   dots: times by size, a logarithmic axis

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

function label(x, y, anchor, class, text) {
    gsub(/`/, "", text); gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text)
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, text
}

function rule(x, bottom) { printf "<path class=\"rule\" d=\"M%.1f %dV%.1f\"/>\n", x, top - 6, bottom }

END {
    if (!rows) { print "no such table" > "/dev/stderr"; exit 1 }
    bottom = top + rows * line
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n", width, bottom + 34
    print "<style>text{font:12px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.small{font-size:11px;fill:#555}" \
        ".rule{stroke:#d5d8dd;fill:none}.c3{fill:#0072b2}.c4{fill:#d55e00}.c5{fill:#009e73}</style>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
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
