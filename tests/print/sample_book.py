"""A small book with everything that print, EPUB and mathematics must get right, built once for all tests."""

from __future__ import annotations

from pathlib import Path

from tiny_book import EXTENSIONS, TinyBook
from tools import ROOT

CONF = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
project, author, copyright, version, release = "The Sample Book", "The authors", "The authors", "1.0", "1.0"
extensions = ["myst_parser", "sphinx_design", "_ext.style.math_svg", "_ext.print.book_pdf", "_ext.print.book_epub"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block", "attrs_inline"]
html_math_renderer = "ziamath"
html_theme = "furo"
html_static_path = [{str(ROOT / "handbook" / "_static")!r}]
numfig = True
bookpdf_name = "sample"
bookpdf_labs_name = "sample-labs"
bookpdf_subtitle = "A book for tests"
bookpdf_manifest = "manifest.json"
bookpdf_licence = "licence.txt"
epub_basename = "sample"
epub_show_urls = "no"
epub_tocscope = "includehidden"
epub_tocdepth = 4
epub_css_files = ["epub.css"]
epub_cover = ("_static/epub-cover.png", "epub-cover.html")
epub_landmarks = {{"bodymatter": "first"}}
exclude_patterns = ["_build"]
"""

MANIFEST = """{"edition": "sample", "machine": {"cpu": "A processor", "cores": 2, "python": "3.11.7"},
"torch": ["2.13.0"], "gpus": [], "nccl": [], "dates": ["2026-01-02T03:04:05", "2026-01-02T03:04:05"]}"""

INDEX = """# The Sample Book

What this book is.

```{toctree}
:hidden:

first
second
third
```
"""

LISTING = "\n".join(
    f"line_{n:03d} = {'f' * (n % 7)}(n={n})  # comment {'x' * (n * 3 % 95)} end{n:03d}" for n in range(150)
)

SECTIONS = "\n".join(
    f"(target-{n})=\n## Section {n}\n\n{'What this section says. ' * (2 + n % 5)}\n\n```python\nline()\nmore()"
    + "\nand_more()" * (n % 7)
    + "\n```\n"
    for n in range(40)
)

FIRST = f"""(first-top)=
# The first chapter

A paragraph with a footnote.[^one] Then another one,[^two] and the first again.[^one]
Inline mathematics $\\bar g = \\frac{{1}}{{p}}\\sum_r g_r$ stands on the line.

[^one]: The text of footnote one, with `code`.
[^two]: The text of footnote two.

```{{math}}
:label: mean
\\bar g = \\frac{{1}}{{p}} \\sum_{{r=0}}^{{p-1}} g_r
```

Equation {{eq}}`mean` is a mean. See {{ref}}`the other chapter <second-target>` and {{doc}}`second`.
An [external link](https://example.org/a/long/path) has no address in print. GLHF! 🏖️

$$
t = \\max\\left(T_{{\\text{{backward}}}}, \\sum_{{b}} \\left( \\alpha + \\beta n_b \\right)\\right)
 + T_{{\\text{{forward}}}} + T_{{\\text{{optimizer}}}}
 + T_{{\\text{{everything else that takes time in a step}}}}
$$ (wide)

## Lists and folds

:::{{dropdown}} A fold's title
Content of the fold.
:::

::::{{tab-set}}
:::{{tab-item}} First tab
Content of the first tab.
:::
:::{{tab-item}} Second tab
```python
content_of_the_second_tab = True
```
:::
::::

:::{{warning}}
An admonition.
:::

:::{{admonition}} Takeaway
:class: takeaway
One bucket, one all-reduce.
:::

```{{figure}} plot.svg
:alt: A bar for each rank
:name: a-figure

What to see in this figure.
```

{{numref}}`a-figure` shows bars.

| rank | bytes |
|-----:|:------|
| 0 | 25 MiB |
| 1 | 25 MiB |

<div class="lanes"><div class="lane r0"><span class="lane-name">rank 0</span><pre>loss 0.5
grad 1.0</pre></div><div class="lane r1"><span class="lane-name">rank 1</span><pre>loss 0.7
grad 1.0</pre></div></div>

<div class="claim"><p>Gradients are equal on all ranks. <a class="tick" href="#first-top">✓</a></p></div>

<details class="card interview"><summary class="card-question">Why in reverse order?</summary>
<p>Because the last layer's gradient is ready first.</p></details>

<div class="card quiz" id="card-one"><p class="card-question"><span>How many buckets?</span></p>
<ol class="quiz-options" type="A"><li>one</li><li>two</li></ol>
<div class="card-why"><p class="card-label">Answer: B</p><p>Two hold them.</p></div></div>

<div class="claim"><p>Momentum and Adam states stay equal on all ranks although they are never
sent.&nbsp;<a class="tick" href="#first-top"><span>✓</span></a></p></div>

<figure class="explorer-figure" id="a-stepper"><figcaption><p>A ring, step by step.</p></figcaption></figure>

```{{only}} builder_bookpdf
<p>DDP averages <span class="bibtex-citation">[<a href="bookpdf:second#work-one">7</a>]</span>.</p>
```

Give every DistributedDataParallel its address, as
[https://docs.example.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html](https://docs.example.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
has it, and then NCCL_DEBUG_SUBSYS.

```console
$ torchrun --nnodes=2 --nproc-per-node=8 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=job42 train.py
```

The call `all_reduce()` adds. To call `all_reduce()` again is to add again; `all_reduce()` is a collective.

## A long listing

```python
{LISTING}
```

```python
def shown():  # said in passing
    return f"{{left}} of it"
```

## Further reading

- [A paper](https://example.org/paper.pdf)

```{{toctree}}
:hidden:

labs/index
```
"""

LABS = """# Labs

```{toctree}
lab_one
```
"""

LAB = """# The lab one

<p class="stamp">cpu · gloo · 2 ranks</p>

## What to notice

It serves {ref}`first-top`.
"""

LICENCE = "Text may be shared with credit.\n\nCode is under the MIT license: https://example.org/licence\n"

LIST = """# A list of pages

```{toctree}
page
```
"""

PAGE = """# A page below

It has something to say.
"""

SECOND = """# The second chapter

(second-target)=
## A target section

<dl class="glossary"><dt id="term-bucket">bucket</dt><dd><p>A parcel.</p></dd></dl>

The message:

<div class="error-message"><pre>RuntimeError: Ranks disagree about the number of parameters that they hold</pre></div>

`NCCL_DEBUG` says more, and `NCCL_DEBUG` less; so set `NCCL_DEBUG`.

```{only} builder_bookpdf
<div class="citation" id="work-one"><span class="label">[7]</span> <p>The work that the first chapter cites.</p></div>
<div class="citation" id="work-two"><span class="label">[8]</span> <p>A work that it does not.</p></div>
```

Back to {doc}`first`, and to {doc}`labs/lab_one`.

```{toctree}
:hidden:

more/index
```

## Labs of this chapter

{doc}`labs/lab_one`

```{only} builder_bookpdf
A [dead link](#nowhere-at-all) is reported.
```
"""

THIRD = f"# The third chapter\n\n{SECTIONS}"


FILES = {
    "conf.py": CONF,
    "manifest.json": MANIFEST,
    "licence.txt": LICENCE,
    "handbook/index.md": INDEX,
    "handbook/first.md": FIRST,
    "handbook/second.md": SECOND,
    "handbook/third.md": THIRD,
    "handbook/labs/index.md": LABS,
    "handbook/labs/lab_one.md": LAB,
    "handbook/more/index.md": LIST,
    "handbook/more/page.md": PAGE,
}


def sample(folder: Path) -> TinyBook:
    """Write the book."""
    made = TinyBook(folder)
    for name, text in FILES.items():
        made.write(name, text)
    made.write("handbook/plot.svg", plot())
    return made


def plot() -> str:
    """A figure as the labs make it."""
    import io

    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context():
        mpl.rcdefaults()  # a lab that ran in this process has set its own
        mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sample", "axes.titleweight": "bold"})
        figure, axes = plt.subplots(figsize=(7.2, 2.2), layout="constrained")
        axes.bar([0, 1, 2], [3, 1, 2], color=["#0072B2", "#D55E00", "#009E73"], hatch="//")
        axes.set_title("Bytes that each rank sends")
        axes.set_xlabel("rank")
        axes.set_ylabel("sent (MiB)")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()
