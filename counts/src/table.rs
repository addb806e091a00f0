//! Counts as a table, which is also valid Markdown.

use crate::record::Record;

/// Returns the table, preceded by a line with the toolchain and the settings.
pub(crate) fn table(record: &Record) -> String {
    let toolchain = &record.toolchain;
    let mut text = format!(
        "Counts of one call with {} bytes each way, average of {} calls; {}, {}, {}, {}.\n\
         Headers: {} bytes before the payload of a request, {} bytes before the payload of a reply.\n\n\
         | link | outstanding | side | codec | rpc | transport | device | instructions | allocations | system calls | datagrams | bytes | turns |\n\
         |---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        record.payload_bytes,
        record.calls,
        toolchain.rustc,
        toolchain.valgrind,
        toolchain.libc,
        toolchain.processor,
        record.request_header_bytes,
        record.reply_header_bytes,
    );
    for (ways, outstanding, side, counts) in record.rows() {
        let row = [
            ways,
            outstanding.to_string(),
            side.to_owned(),
            format!("{:.0}", counts.codec),
            format!("{:.0}", counts.rpc),
            format!("{:.0}", counts.transport),
            format!("{:.0}", counts.device),
            format!("{:.0}", counts.instructions()),
            format!("{:.2}", counts.allocations),
            format!("{:.2}", counts.system_calls),
            format!("{:.2}", counts.datagrams),
            format!("{:.1}", counts.bytes_on_the_wire),
            format!("{:.2}", counts.turns),
        ];
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    for (at, (shape, part)) in record.items_of_a_call().into_iter().enumerate() {
        let line = format!(
            "{shape}: per item, {part:.2} times the instructions of an in-process call, 32 outstanding\n"
        );
        text.push_str(if at == 0 { "\n" } else { "" });
        text.push_str(&line);
    }
    text
}
