// Command vault is a server of Vault with its storage in memory and the parts that CKE uses.
//
// For: tests of Madako against the real thing, which no package registry carries ready-made. scripts/set-up builds it.
//
// It listens on the loopback address that its only argument names (port 0: any free port), initializes and unseals
// itself, enables the methods approle and userpass, and prints one line of JSON with its address, its root token and its
// unseal key. Its API can seal and unseal it (sys/seal, sys/unseal). It ends when its standard input does.
//
// Does not: ship with Madako, keep anything, or use TLS. The version of Vault is in go.mod.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/hashicorp/go-hclog"
	kv "github.com/hashicorp/vault-plugin-secrets-kv"
	"github.com/hashicorp/vault/builtin/credential/approle"
	"github.com/hashicorp/vault/builtin/credential/userpass"
	"github.com/hashicorp/vault/builtin/logical/pki"
	vaulthttp "github.com/hashicorp/vault/http"
	"github.com/hashicorp/vault/internalshared/configutil"
	"github.com/hashicorp/vault/sdk/helper/consts"
	"github.com/hashicorp/vault/sdk/logical"
	"github.com/hashicorp/vault/sdk/physical/inmem"
	"github.com/hashicorp/vault/vault"
)

var engines = map[string]logical.Factory{"pki": pki.Factory, "kv": kv.Factory}

var methods = map[string]logical.Factory{"approle": approle.Factory, "userpass": userpass.Factory}

// The catalog of Vault looks up built-in plugins here. Those above are no plugins, as the core has them itself.
type registry struct{}

func (registry) Contains(name string, kind consts.PluginType) bool {
	_, isEngine := engines[name]
	_, isMethod := methods[name]
	return (isEngine && kind == consts.PluginTypeSecrets) || (isMethod && kind == consts.PluginTypeCredential)
}

func (registry) Get(string, consts.PluginType) (func() (interface{}, error), bool) { return nil, false }

func (registry) Keys(consts.PluginType) []string { return nil }

func (r registry) DeprecationStatus(name string, kind consts.PluginType) (consts.DeprecationStatus, bool) {
	return consts.Supported, r.Contains(name, kind)
}

func (registry) IsBuiltinEntPlugin(string, consts.PluginType) bool { return false }

// What the process prints when it serves.
type ready struct {
	Address   string `json:"address"`
	RootToken string `json:"root_token"`
	UnsealKey string `json:"unseal_key"`
}

func serve(address string) error {
	logger := hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Warn})
	storage, err := inmem.NewInmem(nil, logger)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	if !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return fmt.Errorf("%s is no loopback address", listener.Addr())
	}
	url := "http://" + listener.Addr().String()
	core, err := vault.NewCore(&vault.CoreConfig{
		Physical:           storage,
		StorageType:        "inmem",
		LogicalBackends:    engines,
		CredentialBackends: methods,
		BuiltinRegistry:    registry{},
		Logger:             logger,
		DisableMlock:       true,
		RedirectAddr:       url,
		// The longest life of CKE's certificates.
		MaxLeaseTTL:     876000 * time.Hour,
		DefaultLeaseTTL: 87600 * time.Hour,
	})
	if err != nil {
		return err
	}
	ctx := context.Background()
	made, err := core.Initialize(ctx, &vault.InitParams{
		BarrierConfig:  &vault.SealConfig{SecretShares: 1, SecretThreshold: 1},
		RecoveryConfig: &vault.SealConfig{},
	})
	if err != nil {
		return err
	}
	// Unseal wipes the key that it is given.
	key := append([]byte(nil), made.SecretShares[0]...)
	if unsealed, err := core.Unseal(key); err != nil || !unsealed {
		return fmt.Errorf("the server stays sealed: %w", err)
	}
	handler := vaulthttp.Handler.Handler(&vault.HandlerProperties{
		Core:           core,
		ListenerConfig: &configutil.Listener{Address: listener.Addr().String()},
	})
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(listener, handler) }()
	for method := range methods {
		if err := enable(url, made.RootToken, method); err != nil {
			return err
		}
	}
	printed := ready{url, made.RootToken, base64.StdEncoding.EncodeToString(made.SecretShares[0])}
	if err := json.NewEncoder(os.Stdout).Encode(printed); err != nil {
		return err
	}
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		failed <- err
	}()
	return <-failed
}

// Enables a method at the path of its name.
func enable(url, token, method string) error {
	body, writer := io.Pipe()
	go func() { writer.CloseWithError(json.NewEncoder(writer).Encode(map[string]string{"type": method})) }()
	request, err := http.NewRequest(http.MethodPost, url+"/v1/sys/auth/"+method, body)
	if err != nil {
		return err
	}
	request.Header.Set("X-Vault-Token", token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<12))
		return fmt.Errorf("cannot enable %s: %s: %s", method, answer.Status, text)
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: vault ADDRESS:PORT")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "vault:", err)
		os.Exit(1)
	}
}
