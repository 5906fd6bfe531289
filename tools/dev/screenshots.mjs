/**
 * Writes the screenshots of the README from a running console with Chromium:
 *
 *     node tools/dev/screenshots.mjs http://127.0.0.1:8081/
 */
import { mkdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';

const BYTES_MAX = 200_000;
const SHOTS = [
  { view: 'live', theme: 'light' },
  { view: 'versions', theme: 'dark' },
];
/** The charts show the last minute, in which a page was open and the traffic was steady. */
const WAIT_MS = 70_000;
/** The page has then drawn its charts. */
const DRAW_MS = 3_000;

const [url] = process.argv.slice(2);
if (url === undefined) throw new Error('give the URL of a console');
const folder = join(dirname(fileURLToPath(import.meta.url)), '..', '..', 'docs', 'images');
mkdirSync(folder, { recursive: true });
const executablePath = process.env.CHROMIUM ?? '/usr/bin/chromium';
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const [first] = SHOTS;
const warm = await browser.newPage();
await warm.goto(`${url}#${first.view}`);
await warm.waitForTimeout(WAIT_MS);
for (const { view, theme } of SHOTS) {
  const viewport = { width: 1280, height: 800 };
  const page = await browser.newPage({ viewport, colorScheme: theme });
  await page.goto(`${url}#${view}`);
  await page.getByRole('heading', { level: 2 }).waitFor();
  const minute = page.getByRole('button', { name: '1 min' });
  if (await minute.isVisible()) await minute.click();
  // The demo's gate has compared version 2 with version 1.
  const from = page.getByLabel('From version');
  if (await from.isVisible()) await from.selectOption('1');
  await page.waitForTimeout(DRAW_MS);
  const path = join(folder, `console-${view}.png`);
  await page.screenshot({ path });
  const { size } = statSync(path);
  console.log(`${path}: ${size} bytes`);
  if (size > BYTES_MAX) throw new Error(`${path} has more than ${BYTES_MAX} bytes`);
}
await browser.close();
