"""The figures of `shardmark predict --figures`: lines over GPUs or degrees."""
import os

from matplotlib.ticker import FuncFormatter, NullLocator

from .run_json import load_document
from .sheet import Sheet, decimal_text, file_name, legend_above, line_style, new_figure

SCHEMA = "shardmark-predict/1"


def load(directory):
    return load_document(os.path.join(directory, "predict.json"), SCHEMA, "a prediction")


def prediction(document):
    for one in document["figures"]:
        figure, axis = new_figure(2.1)
        for index, line in enumerate(one["lines"]):
            axis.plot(line["x"], line["y"], label=line["name"], **line_style(index))
        if one["x"]["logarithmic"]:
            places = one["lines"][0]["x"]
            axis.set_xscale("log", base=2)
            axis.set_xticks(places[::max(1, -(-len(places) // 6))])
            axis.xaxis.set_minor_locator(NullLocator())
            axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: decimal_text(x)))
        if one["y"]["logarithmic"]:
            axis.set_yscale("log")
        else:
            axis.set_ylim(0)
        axis.set_xlabel(one["x"]["label"])
        axis.set_ylabel(one["y"]["label"])
        if len(one["lines"]) > 1:
            legend_above(axis)
        yield Sheet(file_name("predict", one["name"]), one["title"], one["caption"], figure,
                    ["line", one["x"]["label"], one["y"]["label"]],
                    [[line["name"], x, y] for line in one["lines"] for x, y in zip(line["x"], line["y"], strict=True)])
