/** A prediction as code to copy. Values are written as JSON, so that they cannot end a string. */

export function createSnippets(
  origin: string,
  model: string,
  row: Readonly<Record<string, unknown>>,
): Readonly<Record<string, string>> {
  const url = `${origin}/v1/ctr:predict?model=${encodeURIComponent(model)}`;
  const body = JSON.stringify({ rows: [row] });
  return {
    curl: `curl -s ${quote(url)} \\
  -H 'Content-Type: application/json' \\
  -d ${quote(body)}`,
    Python: `import json, urllib.request

request = urllib.request.Request(
    ${JSON.stringify(url)},
    data=json.dumps(${body}).encode(),
    headers={"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["probabilities"])`,
    TypeScript: `import { CtrClient } from 'hypercube-client';

const client = new CtrClient({ url: ${JSON.stringify(origin)} });
const { probabilities, version } = await client.predict(
  [${JSON.stringify(row)}],
  { model: ${JSON.stringify(model)} },
);
client.close();`,
  };
}

/** For a shell: nothing is special between single quotes. */
function quote(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}
