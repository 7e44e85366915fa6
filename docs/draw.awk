# What every plot of the book is drawn with: SVG with a white ground, on which it is readable
# whatever theme the page has.

function begin(width, height) {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n", width, height
    print "<style>text{font:12px 'DejaVu Sans',Verdana,sans-serif;fill:#222}.small{font-size:11px;fill:#555}" \
        ".rule{stroke:#d5d8dd;fill:none}.c3{fill:#0072b2}.c4{fill:#d55e00}.c5{fill:#009e73}</style>"
    print "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>"
}

function label(x, y, anchor, class, text) {
    gsub(/`/, "", text); gsub(/&/, "\\&amp;", text); gsub(/</, "\\&lt;", text)
    printf "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, text
}
