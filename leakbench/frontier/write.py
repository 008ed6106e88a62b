def said(row):
    return str({k: row.get(k) for k in ('row','point','trained_accuracy','identified','asr','epsilon_valid','wall_minutes','left_out')})


def write(rows, out, dataset, data_dir):
    return []


def reach_lines(rows, reach):
    return []
