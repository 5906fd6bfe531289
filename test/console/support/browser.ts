/** A browser for tests of the console: Chromium as the system has it, or none. */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import type { TestContext } from 'node:test';
import { type Browser, chromium, type Page } from 'playwright-core';

const PATHS = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
];
/** Long: the machine may be busy. */
const TIMEOUT_MS = 120_000;

const BROWSER_PATH: string | undefined = PATHS.find((path) => existsSync(path));
/** The option `skip` of tests that need a browser. */
export const SKIP: string | false = BROWSER_PATH === undefined ? 'no Chromium is installed' : false;

export async function startBrowser(t: TestContext): Promise<Browser> {
  const browser = await chromium.launch({
    executablePath: BROWSER_PATH ?? '',
    args: ['--no-sandbox', '--disable-gpu'],
    timeout: TIMEOUT_MS,
  });
  t.after(() => browser.close());
  return browser;
}

/** A page whose errors and requests to other hosts fail the test when it is closed. */
export class ConsolePage {
  readonly page: Page;
  readonly #origin: string;
  readonly #complaints: string[] = [];

  private constructor(page: Page, origin: string) {
    this.page = page;
    this.#origin = origin;
  }

  static async open(
    browser: Browser,
    origin: string,
    { width = 1280, dark = false }: { width?: number; dark?: boolean } = {},
  ): Promise<ConsolePage> {
    const page = await browser.newPage({
      viewport: { width, height: 900 },
      colorScheme: dark ? 'dark' : 'light',
    });
    page.setDefaultTimeout(TIMEOUT_MS);
    const opened = new ConsolePage(page, origin);
    page.on('console', (message) => {
      if (message.type() === 'error') opened.#complaints.push(message.text());
    });
    page.on('pageerror', (error) => opened.#complaints.push(String(error)));
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(`${origin}/`)) opened.#complaints.push(`request to ${url}`);
    });
    return opened;
  }

  /** Shows a view and waits for its heading. */
  async show(view: string): Promise<void> {
    const title = view.charAt(0).toUpperCase() + view.slice(1);
    await this.page.goto(`${this.#origin}/#${view}`);
    await this.page.getByRole('heading', { name: title, level: 2, exact: true }).waitFor();
  }

  /** Pixels by which the page is wider than the window. */
  overflow(): Promise<number> {
    return this.page.evaluate('document.documentElement.scrollWidth - innerWidth');
  }

  /** @param expected patterns of errors that the test causes */
  async close(expected: readonly RegExp[] = []): Promise<void> {
    const isExpected = (text: string): boolean => expected.some((pattern) => pattern.test(text));
    assert.deepEqual(
      this.#complaints.filter((text) => !isExpected(text)),
      [],
    );
    await this.page.close();
  }
}
