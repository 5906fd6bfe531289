/** A gentle stream of rows while the demo serves, so that the charts of its console live. */

/** Ten requests a second look steady in a chart. */
const REQUEST_MS = 100;

/**
 * Sends rows until `stop`. Failed requests are not reported: the console shows them.
 * @param rowsPerSecond 0: sends nothing
 */
export async function sendGentleTraffic(
  endpoint: string,
  rows: string,
  rowsPerSecond: number,
  stop: AbortSignal,
): Promise<void> {
  const lines = rows.trimEnd().split('\n');
  const headers = { 'content-type': 'text/tab-separated-values' };
  const startMs = performance.now();
  for (let sent = 0; rowsPerSecond > 0 && !stop.aborted; ) {
    await new Promise((resolve) => setTimeout(resolve, REQUEST_MS));
    const due = (rowsPerSecond * (performance.now() - startMs)) / 1_000 - sent;
    const count = Math.min(Math.floor(due), rowsPerSecond, lines.length);
    if (count < 1) continue;
    const from = sent % (lines.length - count + 1);
    // After a pause the missed rows are not sent.
    sent += Math.floor(due);
    const body = lines.slice(from, from + count).join('\n');
    const request = fetch(`${endpoint}/v1/ctr:predict`, {
      method: 'POST',
      headers,
      body,
      signal: stop,
    });
    await request.then((response) => response.arrayBuffer()).catch(() => undefined);
  }
}
