/** Builds the console into static files in dist/console that processes serve at /console/. */
import { defineConfig } from 'vite';

export default defineConfig({
  root: import.meta.dirname,
  base: '/console/',
  logLevel: 'warn',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: '../dist/console',
    emptyOutDir: true,
    // Files lie beside the page: a process serves one folder without subfolders.
    assetsDir: '.',
    // Data URLs would need an exception in the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: false,
    target: 'es2022',
  },
});
